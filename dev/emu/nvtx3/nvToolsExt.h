// nvToolsExt.h: ranges for a profiler, which there is none of here.
#ifndef EMU_NVTOOLSEXT_H
#define EMU_NVTOOLSEXT_H

static inline int nvtxRangePushA(const char *) { return 0; }
static inline int nvtxRangePop() { return 0; }
static inline void nvtxMarkA(const char *) {}

#endif
