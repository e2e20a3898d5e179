# train_gpt: every build and every test. `make help` lists targets and variables.
#
# Only a C compiler and make are needed; what else is found is used, what is missing costs one line that says what
# goes without it. Every library is probed by compiling and linking with the very compiler that builds the program.
# Each configuration builds into its own folder, and the flags it was built with are part of what it depends on.

# ---------------------------------------------------------------------------------------------------------------
# What can be set on the command line

CUDA_HOME ?= $(firstword $(wildcard /usr/local/cuda /opt/cuda))
ifeq ($(origin NVCC),undefined)
NVCC := $(or $(shell command -v nvcc 2>/dev/null),$(wildcard $(CUDA_HOME)/bin/nvcc))
endif
HAVE_GPU  := $(if $(NVCC),$(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU' && echo yes))
DEVICE    ?= $(if $(HAVE_GPU),cuda,cpu)
PRECISION ?= $(if $(filter cuda,$(DEVICE)),bf16,fp32)
MASTER    ?= fp32
MOMENTS   ?= fp32
OPENMP    ?= auto
PCRE2     ?= auto
NCCL      ?= auto
MPI       ?= $(if $(filter cuda,$(DEVICE)),auto,0)
MPICC     ?= mpicc
SANITIZE  ?= 0
CUDA_ARCH ?=
TESTS     ?=
DEMOS     ?=
LLMC      ?=
PYTHON    ?= python3
RUN_OUT   ?=
RUN_OPTIONS ?= --batch 8 --seq 128 --steps 1500 --lr 2e-3 --val-every 250 --sample-every 500 --checkpoint-every 500

# make's own default is `cc`, which a machine with nothing but gcc or clang may lack.
first_found = $(firstword $(foreach tool,$(1),$(if $(shell command -v $(tool) 2>/dev/null),$(tool))))
ifeq ($(origin CC),default)
CC := $(or $(call first_found,gcc clang cc),gcc)
endif
ifeq ($(origin CXX),default)
CXX := $(or $(call first_found,$(if $(findstring clang,$(CC)),clang++ g++,g++ clang++) c++),g++)
endif

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules
FORCE:

# Goals that compile nothing need no probes and no report.
GOALS    := $(or $(MAKECMDGOALS),all)
COMPILES := $(filter-out gpu-precisions help clean format check-headers,$(GOALS))

# The tests are many programs: unless asked otherwise (-j1) they are compiled on all cores.
ifneq ($(filter test test-emu,$(GOALS)),)
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 1)
endif
endif

# ---------------------------------------------------------------------------------------------------------------
# Which configuration

EMPTY :=
COMMA := ,
DEVICES    := cpu emu cuda
PRECISIONS := fp32 tf32 bf16 fp16 fp8-delayed fp8-current fp8-row fp8-block mxfp8 nvfp4
MASTERS    := fp32 kahan stochastic nearest
MOMENTSES  := fp32 bf16 bf16sr
one_of = $(if $(and $(filter 1,$(words $(2))),$(filter $(3),$(2))),,$(error $(1)=$(2) is not one of: $(3)))
$(call one_of,DEVICE,$(DEVICE),$(DEVICES))
$(call one_of,PRECISION,$(PRECISION),$(PRECISIONS))
$(call one_of,MASTER,$(MASTER),$(MASTERS))
$(call one_of,MOMENTS,$(MOMENTS),$(MOMENTSES))
ifneq ($(MASTER),fp32)
ifneq ($(PRECISION),bf16)
$(error MASTER=$(MASTER) keeps the weights in bf16 without an fp32 master: it goes with PRECISION=bf16, not $(PRECISION))
endif
endif
$(call one_of,OPENMP,$(OPENMP),auto 1 0)
$(call one_of,PCRE2,$(PCRE2),auto 1 0)
$(call one_of,NCCL,$(NCCL),auto 1 0)
$(call one_of,MPI,$(MPI),auto 1 0)
ifeq ($(MPI)-$(DEVICE),1-cpu)
$(error MPI=1 starts ranks, and DEVICE=cpu has one: it goes with DEVICE=cuda or emu)
endif
$(call one_of,SANITIZE,$(SANITIZE),0 1)

NAME := $(DEVICE)-$(PRECISION)$(if $(filter-out fp32,$(MASTER)),-$(MASTER))$(if $(filter-out fp32,$(MOMENTS)),-m$(MOMENTS))$(if $(filter 1,$(SANITIZE)),-sanitize)$(if $(filter 1,$(MPI)),-mpi)
B    := build/$(NAME)

# ---------------------------------------------------------------------------------------------------------------
# Probes

# $(call try_build,program text,flags): "yes" if it compiles and links. \043 is '#', which make would take as a comment.
try_build = $(shell printf '$(1)\n' | $(CC) $(2) -x c - -o /dev/null $(3) 2>/dev/null && echo yes)
EMPTY_PROGRAM  := int main(void) { return 0; }
OPENMP_PROGRAM := \043include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }
PCRE2_PROGRAM  := \043define PCRE2_CODE_UNIT_WIDTH 8\n\043include <pcre2.h>\nint main(void) \
                  { return pcre2_config(PCRE2_CONFIG_UNICODE, NULL); }

ifneq ($(COMPILES),)

ifneq ($(call try_build,$(EMPTY_PROGRAM)),yes)
$(error the compiler CC=$(CC) cannot build an empty program (Debian, Ubuntu: apt-get install gcc libc6-dev; or name another: make CC=clang))
endif

# -march tunes for and allows this machine's instructions on x86, -mcpu does so on arm. Compilers shy away from 512-bit
# vectors on some CPUs that have them; the element-wise loops here are a third faster with them (GELU, gcc and clang).
NATIVE := $(firstword $(foreach flag,-march=native -mcpu=native,$(if $(call try_build,$(EMPTY_PROGRAM),-Werror $(flag)),$(flag))))
NATIVE += $(if $(call try_build,$(EMPTY_PROGRAM),-Werror $(NATIVE) -mprefer-vector-width=512),-mprefer-vector-width=512)

OPENMP_FLAGS :=
ifneq ($(OPENMP),0)
ifeq ($(call try_build,$(OPENMP_PROGRAM),-fopenmp),yes)
OPENMP_FLAGS := -fopenmp
else ifeq ($(OPENMP),1)
$(error OPENMP=1, but $(CC) cannot build with -fopenmp (Debian, Ubuntu: apt-get install libomp-dev for clang; gcc brings its own))
else
$(info no OpenMP with $(CC): one thread only (clang: apt-get install libomp-dev))
endif
endif

PCRE2_FLAGS :=
PCRE2_LIBS  :=
ifneq ($(PCRE2),0)
ifeq ($(call try_build,$(PCRE2_PROGRAM),,-lpcre2-8),yes)
PCRE2_FLAGS := -DHAVE_PCRE2
PCRE2_LIBS  := -lpcre2-8
else ifeq ($(PCRE2),1)
$(error PCRE2=1, but $(CC) cannot build with libpcre2-8 (Debian, Ubuntu: apt-get install libpcre2-dev))
else
$(info no PCRE2: no gpt2 tokenizer, only the byte tokenizer (apt-get install libpcre2-dev))
endif
endif

# The C++ compiler takes the C compiler's flags, so a pair of one maker is wanted (above); without one, no emulator.
HAVE_CXX := $(shell printf 'int main() { return 0; }\n' | $(CXX) $(OPENMP_FLAGS) -std=gnu++17 -x c++ - -o /dev/null 2>/dev/null && echo yes)

ifneq ($(filter-out cpu,$(DEVICE)),)
ifeq ($(HAVE_CXX),)
$(error DEVICE=$(DEVICE) needs a C++ compiler, and CXX=$(CXX) cannot build a C++17 program (Debian, Ubuntu: apt-get install g++))
endif
endif
ifneq ($(filter cuda,$(DEVICE))$(filter cuda-check,$(GOALS)),)
ifeq ($(NVCC),)
$(error no nvcc in PATH, nor in CUDA_HOME=$(or $(CUDA_HOME),/usr/local/cuda): name the toolkit's folder with CUDA_HOME=, or build without a GPU: DEVICE=cpu, DEVICE=emu)
endif
ifeq ($(wildcard $(CUDA_HOME)/include/cublasLt.h $(dir $(NVCC))../include/cublasLt.h),)
$(error the toolkit of $(NVCC) has no cublasLt.h: install its cuBLAS package, or name another toolkit with CUDA_HOME=)
endif
endif

# NCCL, for several ranks; it may lie in the toolkit's folder or in the system's.
NCCL_FLAGS :=
NCCL_LIBS  :=
ifneq ($(filter cuda,$(DEVICE))$(filter cuda-check test-compiled,$(GOALS)),)
NCCL_PATHS := -I$(CUDA_HOME)/include $(patsubst %,-L%,$(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib))
ifneq ($(NCCL),0)
ifeq ($(shell printf '\043include <nccl.h>\nint main() { int v; return ncclGetVersion(&v); }\n' | $(CXX) -x c++ - $(NCCL_PATHS) -lnccl -o /dev/null 2>/dev/null && echo yes),yes)
NCCL_FLAGS := -DHAVE_NCCL
NCCL_LIBS  := $(filter -L%,$(NCCL_PATHS)) -lnccl
else ifeq ($(NCCL),1)
$(error NCCL=1, but $(CXX) cannot build with nccl.h and -lnccl, in CUDA_HOME or elsewhere (Debian, Ubuntu, NVIDIA's packages: apt-get install libnccl-dev))
else
$(info no NCCL: one rank only (NVIDIA's packages: apt-get install libnccl-dev))
endif
endif
endif

# MPI, as one more way to start several ranks: mpirun, srun and torchrun are understood without. Its compiler says what
# to compile and link with; nvcc wants options for the linker under another name.
MPI_FLAGS :=
MPI_LIBS  :=
HAVE_MPI  :=
ifneq ($(filter-out 0,$(MPI))$(filter test,$(GOALS)),)
MPI_WORDS := $(shell $(MPICC) -show 2>/dev/null)
MPI_PATHS := $(filter -I%,$(MPI_WORDS))
MPI_LINKS := $(filter -L% -l% -Wl%,$(MPI_WORDS))
HAVE_MPI  := $(if $(MPI_WORDS),$(shell printf '\043include <mpi.h>\nint main() { return MPI_Init(0, 0); }\n' | $(CXX) -DOMPI_SKIP_MPICXX -x c++ - $(MPI_PATHS) $(MPI_LINKS) -o /dev/null 2>/dev/null && echo yes))
ifneq ($(MPI),0)
ifeq ($(HAVE_MPI),yes)
MPI_FLAGS := -DHAVE_MPI $(MPI_PATHS)
MPI_LIBS  := $(if $(filter cuda,$(DEVICE)),$(patsubst -Wl%,-Xlinker=%,$(subst -Wl$(COMMA),-Wl,$(MPI_LINKS))),$(MPI_LINKS))
else ifeq ($(MPI),1)
$(error MPI=1, but a program with mpi.h does not build with what '$(MPICC) -show' says (Debian, Ubuntu: apt-get install libopenmpi-dev))
else
$(info no MPI: several ranks by environment alone, which mpirun, srun and torchrun set, too (apt-get install libopenmpi-dev))
endif
endif
endif

# GCC sees uninitialised values in kernels whose loops are unrolled as one.
EMU_QUIET := $(if $(shell printf 'int main() { return 0; }\n' | $(CXX) -Werror -Wmaybe-uninitialized -x c++ - -o /dev/null 2>/dev/null && echo yes),-Wno-maybe-uninitialized)

SANITIZERS      := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
HAVE_SANITIZERS  = $(call try_build,$(EMPTY_PROGRAM),$(SANITIZERS))
ifeq ($(SANITIZE),1)
SANITIZE_FLAGS := $(SANITIZERS)
ifneq ($(HAVE_SANITIZERS),yes)
$(error SANITIZE=1, but $(CC) cannot build with $(SANITIZE_FLAGS) (Debian, Ubuntu: apt-get install libclang-rt-dev for clang; gcc brings its own))
endif
endif

endif  # COMPILES

# ---------------------------------------------------------------------------------------------------------------
# Flags. CFLAGS is the caller's: speed and debugging. What the numbers and the code rely on is always there:
# no contraction (the same roundings everywhere), and errno and traps off, which changes no value. Nothing that lets
# the compiler assume finite numbers: NaN and infinity are part of what is tested (dev/test/test_finite.c).

ifeq ($(SANITIZE),1)
CFLAGS ?= -O1 -g
else
CFLAGS ?= -O3 $(NATIVE)
endif
BASE_FLAGS := -std=gnu11 -I. -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Werror \
              $(if $(OPENMP_FLAGS),,-Wno-unknown-pragmas) $(OPENMP_FLAGS) $(PCRE2_FLAGS)
# $(call config_flags,name,precision,master,moments)
config_flags = -DBUILD_NAME=$(1) -DPRECISION_$(subst -,_,$(2)) -DMASTER_$(3) -DMOMENTS_$(4)
ALL_FLAGS  := $(BASE_FLAGS) $(call config_flags,$(NAME),$(PRECISION),$(MASTER),$(MOMENTS)) $(SANITIZE_FLAGS) $(CFLAGS)
ALL_LIBS   := $(LDFLAGS) $(PCRE2_LIBS) -lm -pthread
COMPILER   := $(CC) $(if $(COMPILES),$(shell $(CC) -dumpfullversion -dumpversion 2>/dev/null))

ifneq ($(COMPILES),)
$(info $(NAME): $(COMPILER) $(CFLAGS), OpenMP $(if $(OPENMP_FLAGS),yes,no), PCRE2 $(if $(PCRE2_FLAGS),yes,no))
endif

# Rewritten only when compiler or flags differ from those of the last build in this folder; every program needs it.
%/flags: FORCE
	@mkdir -p $(@D)
	@[ "$$(cat $@ 2>/dev/null)" = "$$BUILD_STAMP" ] || printf '%s\n' "$$BUILD_STAMP" > $@
$(B)/flags: export BUILD_STAMP := $(COMPILER) $(CXX) $(ALL_FLAGS) $(ALL_LIBS) $(if $(filter cuda,$(DEVICE)),$(NVCC) $(CUDA_ARCH) $(NCCL_FLAGS)) $(MPI_FLAGS) $(MPI_LIBS)

# ---------------------------------------------------------------------------------------------------------------
# Programs: one translation unit each, straight to a binary; -MMD writes what it included beside it.

UNIT_TESTS  := $(basename $(notdir $(wildcard dev/test/test_*.c)))
SHELL_TESTS := $(wildcard dev/test/test_*.sh)
EXHAUSTIVE  := $(basename $(notdir $(wildcard dev/test/exhaustive_*.c)))
BENCHES     := $(basename $(notdir $(wildcard dev/bench/bench_*.c)))
MODEL_TEST  := $(basename $(wildcard test_gpt.c))
PROGRAMS    := $(basename $(wildcard train_gpt.c)) $(basename $(notdir $(wildcard data/tokenize.c)))

BUILD_PROGRAM = $(CC) $(ALL_FLAGS) -MMD -MP -MF $@.d -MT $@ -o $@ $< $(ALL_LIBS)
$(B)/%: %.c $(B)/flags
	$(BUILD_PROGRAM)
$(B)/%: data/%.c $(B)/flags
	$(BUILD_PROGRAM)
$(B)/%: dev/test/%.c $(B)/flags
	$(BUILD_PROGRAM)
$(B)/%: dev/bench/%.c $(B)/flags
	$(BUILD_PROGRAM)
$(B)/%: dev/demos/%.c $(B)/flags
	$(BUILD_PROGRAM)
# Where the CUDA toolkit's headers are, the exhaustive comparison is with their conversions too; they want C++.
CUDA_FP4  := $(wildcard $(CUDA_HOME)/include/cuda_fp4.h)
ifneq ($(and $(CUDA_FP4),$(shell command -v $(CXX) 2>/dev/null)),)
$(B)/exhaustive_formats: dev/test/exhaustive_formats.c $(B)/flags
	$(CXX) -x c++ -std=gnu++17 $(filter-out -std=%,$(ALL_FLAGS)) -DWITH_CUDA_HEADERS -isystem $(dir $(CUDA_FP4)) \
	    -MMD -MP -MF $@.d -MT $@ -o $@ $< $(ALL_LIBS)
endif

# .cu files as C++ against dev/emu, a CUDA runtime for the CPU: no toolkit, only the C++ compiler. The emulator knows
# nothing of precisions and is compiled once; a second time with sanitizers.
EMU_TESTS   := $(basename $(notdir $(wildcard dev/emu/test_*.cu dev/test/test_*.cu)))
emu_objects  = $(patsubst dev/emu/%.cpp,build/emulator$(1)/%.o,$(wildcard dev/emu/*.cpp))
EMU_OBJECTS := $(call emu_objects,$(if $(SANITIZE_FLAGS),-sanitize))
# $(call emu_flags,flags of a C compilation)
emu_flags    = -std=gnu++17 $(filter-out -std=%,$(1)) -DEMU -Idev/emu -Wno-unknown-pragmas $(EMU_QUIET)
# $(call build_emu,flags,objects)
build_emu    = $(CXX) $(call emu_flags,$(1)) -MMD -MP -MF $@.d -MT $@ -o $@ -x c++ $< -x none $(2) $(ALL_LIBS)
# $(call emulator,ending of the folder's name,flags)
define emulator
$(call emu_objects,$(1)): build/emulator$(1)/%.o: dev/emu/%.cpp build/emulator$(1)/flags
	$(CXX) $(call emu_flags,$(BASE_FLAGS) $(2)) -MMD -MP -MF $$@.d -MT $$@ -c -o $$@ $$<
build/emulator$(1)/flags: export BUILD_STAMP := $(COMPILER) $(CXX) $(call emu_flags,$(BASE_FLAGS) $(2))
endef
$(eval $(call emulator,,-O2 $(NATIVE)))
$(eval $(call emulator,-sanitize,-O1 -g $(SANITIZERS)))
$(B)/test_%: dev/emu/test_%.cu $(EMU_OBJECTS) $(B)/flags
	$(call build_emu,$(ALL_FLAGS),$(EMU_OBJECTS))
$(B)/test_%_cuda: dev/test/test_%_cuda.cu $(EMU_OBJECTS) $(B)/flags
	$(call build_emu,$(ALL_FLAGS),$(EMU_OBJECTS))

# build/emulated/PROGRAM_CONFIGURATION: the GPU's programs on the emulator for tests, beside whatever is configured: the
# CPU build's tests run them in all precisions. CONFIGURATION is a precision, with -stochastic (no masters) or -sanitize
# behind it. $(call emulated,program,ending of the configuration); little optimisation, since they run for seconds; none
# with sanitizers, whose checks take an optimiser half a minute and more.
EMULATED_FLAGS    := $(BASE_FLAGS) -DGEMM_ONE_TILE
emulated_precision = $(subst -stochastic,,$(1))
define emulated
build/emulated/$(1)_%$(2): $(1).cu $(call emu_objects,$(2)) build/emulated/flags
	$$(call one_of,CONFIGURATION,$$(call emulated_precision,$$*),$(PRECISIONS))
	$$(call build_emu,$$(EMULATED_FLAGS) $$(if $(2),-O0 -g $$(SANITIZERS),-O1 $$(NATIVE)) $$(call config_flags,emu-$$*$(2),$$(call emulated_precision,$$*),$$(if $$(findstring stochastic,$$*),stochastic,fp32),fp32),$(call emu_objects,$(2)))
endef
$(foreach program,test_gpt train_gpt profile_gpt,$(foreach ending,-plain -sanitize,$(eval $(call emulated,$(program),$(filter-out -plain,$(ending))))))
build/emulated/flags: export BUILD_STAMP := $(COMPILER) $(CXX) $(call emu_flags,$(EMULATED_FLAGS) -O1 $(NATIVE) -O0 -g $(SANITIZERS)) $(ALL_LIBS)

# The trainer for this device, and its test. With nvcc: SASS for each CUDA_ARCH (say "90a", or "80 90a"), PTX of the
# first; without CUDA_ARCH for the GPU that is here, or for the list below. Never --use_fast_math.
CUDA_ARCHS     := 80 89 90a 100a 120a
NVCC_ARCH      := $(or $(CUDA_ARCH),$(if $(HAVE_GPU),,$(CUDA_ARCHS)))
NVCC_TARGETS   := $(if $(NVCC_ARCH),$(foreach arch,$(NVCC_ARCH),-gencode arch=compute_$(arch),code=sm_$(arch)) \
                    -gencode arch=compute_$(firstword $(NVCC_ARCH))$(COMMA)code=compute_$(firstword $(NVCC_ARCH)),-arch=native)
NVCC_HOST       = $(subst $(EMPTY) ,$(COMMA),$(strip $(filter-out -std=% -I% -D% -Wextra -Wall -Werror,$(ALL_FLAGS))))
NVCC_FLAGS      = -std=c++17 -O3 -I. $(filter -D%,$(ALL_FLAGS)) $(NCCL_FLAGS) $(MPI_FLAGS) -Werror all-warnings --diag-suppress 1675 -Xcompiler=$(NVCC_HOST) -ccbin $(CXX) \
                  $(NVCC_TARGETS)
# The toolkit's libraries are found where it lies, whether or not the system's linker knows that folder.
NVCC_RPATH     := $(patsubst %,-Xlinker=-rpath=%,$(sort $(abspath $(wildcard $(addsuffix /lib64,$(CUDA_HOME) $(dir $(NVCC))..) \
                    $(addsuffix /lib,$(CUDA_HOME) $(dir $(NVCC))..)))))
BUILD_CUDA      = $(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $@.d -MT $@ -o $@ $< $(LDFLAGS) $(NVCC_RPATH) -lcublasLt $(NCCL_LIBS) $(MPI_LIBS) $(PCRE2_LIBS)
GPU_PROGRAMS   := $(addprefix $(B)/,$(basename $(wildcard *_gpt.cu)))
ifeq ($(DEVICE),emu)
$(GPU_PROGRAMS): $(B)/%: %.cu $(EMU_OBJECTS) $(B)/flags
	$(call build_emu,$(ALL_FLAGS) $(MPI_FLAGS),$(EMU_OBJECTS) $(MPI_LIBS))
else ifeq ($(DEVICE),cuda)
$(GPU_PROGRAMS): $(B)/%: %.cu $(B)/flags
	$(BUILD_CUDA)
endif
# What the compilers wrote about includes; made by no rule, though those of build/emulated would match them.
INCLUDED := $(wildcard $(B)/*.d build/emulat*/*.d)
$(INCLUDED): ;
-include $(INCLUDED)

.PHONY: all gpu-precisions train_gpt tokenize test_gpt profile_gpt data run test test-emu cuda-check test-compiled test-exhaustive bench demos check-headers format clean help
all: $(PROGRAMS)

# The links point at the configuration asked for last.
train_gpt test_gpt profile_gpt: %: $(B)/%
	@ln -sfn $< $@
tokenize: $(B)/tokenize
	@ln -sfn ../$< data/tokenize

# ---------------------------------------------------------------------------------------------------------------
# The embedded dataset: this repository's own text, byte by byte, each file a document. Sorted, and listed without
# git, so that a copy of the folder gives the same tokens as a clone.

SELF_TEXT := $(sort $(wildcard README.md LICENSE Makefile *.c *.cu llmc/*.h llmc/*.cuh data/*.c data/*.md data/*.sh \
               doc/*.md scripts/*.py scripts/*.sh dev/*/*.c dev/*/*.h dev/*/*.py dev/*/*.sh))
SELF_DATA := data/self_train_000000.bin data/self_val_000000.bin
data: $(SELF_DATA) | tokenize
# Both come from one command: to make that is what several targets of a pattern mean (% is the underscore).
data/self%train_000000.bin data/self%val_000000.bin: $(SELF_TEXT) | $(B)/tokenize
	@echo "data: $(words $(SELF_TEXT)) files of this repository to $(firstword $(SELF_DATA))"
	@$(B)/tokenize --tokenizer byte --val-fraction 0.1 --out data/self $(SELF_TEXT)

# Each run gets a folder of its own, log/run_1, log/run_2, ...: an earlier one is never written into.
run: train_gpt data
	@out="$(RUN_OUT)"; n=1; \
	if [ -z "$$out" ]; then while [ -e log/run_$$n ]; do n=$$((n + 1)); done; out=log/run_$$n; fi; \
	echo ./train_gpt $(RUN_OPTIONS) --out $$out; \
	./train_gpt $(RUN_OPTIONS) --out $$out || exit; \
	if python3 -c 'import matplotlib' 2>/dev/null; then \
	    python3 scripts/plot_runs.py $$out --out $$out/loss.png; \
	else \
	    echo "no plot: python3 with matplotlib is not here (with uv: uv run scripts/plot_runs.py $$out)"; \
	fi

# ---------------------------------------------------------------------------------------------------------------
# Tests. TESTS="schedule rand" runs only dev/test/test_schedule.* and test_rand.*.

wanted     = $(if $(TESTS),$(foreach test,$(TESTS),$(filter %test_$(test) %test_$(test).sh,$(1))),$(1))
RUN_UNIT  := $(addprefix $(B)/,$(call wanted,$(UNIT_TESTS) $(MODEL_TEST)))
RUN_SHELL := $(call wanted,$(SHELL_TESTS))
RUN_EMU   := $(if $(HAVE_CXX),$(addprefix $(B)/,$(call wanted,$(EMU_TESTS))))
NO_EMU    := $(if $(HAVE_CXX),,echo "skip  emulator: $(CXX) cannot build a C++17 program (Debian, Ubuntu: apt-get install g++)")

# test_gpt.cu on the emulator, part of the CPU build's tests: in each precision; with sanitizers in bf16 alone. What
# test_emu_schedules.sh runs is built with it.
EMU_CONFIGS := $(if $(filter 1,$(SANITIZE)),bf16-sanitize,$(PRECISIONS))
EMU_MODELS  := $(if $(and $(HAVE_CXX),$(wildcard test_gpt.cu)),$(patsubst %,build/emulated/test_gpt_%,$(EMU_CONFIGS)))
RUN_MODELS  := $(if $(filter cpu,$(DEVICE)),$(if $(TESTS),$(filter $(addprefix %/test_,$(TESTS)),$(EMU_MODELS)),$(EMU_MODELS)))
SCHEDULED   := $(if $(and $(HAVE_CXX),$(filter %test_emu_schedules.sh,$(RUN_SHELL)),$(filter 0,$(SANITIZE))), \
                 build/emulated/train_gpt_bf16 $(patsubst %,build/emulated/test_gpt_%,bf16 fp32 fp8-delayed fp8-row fp8-block \
                 mxfp8 nvfp4 $(if $(HAVE_SANITIZERS),bf16-sanitize nvfp4-sanitize)))
# The rehearsal of scripts/validate_gpu.sh builds what it runs; here, so that it is built side by side. One precision
# of each kind: all of them (VALIDATE_MODES=all) take minutes.
VALIDATE_MODES ?= bf16 fp8-delayed nvfp4
REHEARSED := $(if $(filter all,$(VALIDATE_MODES)),$(PRECISIONS),$(VALIDATE_MODES))
ifneq ($(and $(HAVE_CXX),$(filter %test_validate.sh,$(RUN_SHELL)),$(filter 0,$(SANITIZE))),)
SCHEDULED += $(foreach precision,$(REHEARSED),build/emulated/test_gpt_$(precision) build/emulated/profile_gpt_$(precision)) \
             build/emulated/train_gpt_bf16
endif
# test_run_scripts.sh rehearses with several ranks.
ifneq ($(and $(HAVE_CXX),$(filter %test_run_scripts.sh,$(RUN_SHELL)),$(filter 0,$(SANITIZE))),)
SCHEDULED += build/emulated/train_gpt_bf16
endif

# What test_ranks*.sh run.
RANKED := $(if $(filter %test_ranks.sh,$(RUN_SHELL)),fp32) $(if $(filter %test_ranks_checkpoint.sh,$(RUN_SHELL)),bf16) \
          $(if $(filter %test_ranks_formats.sh,$(RUN_SHELL)),fp32 bf16 fp16 fp8-delayed bf16-stochastic) \
          $(if $(filter %test_ranks_delayed.sh,$(RUN_SHELL)),fp8-delayed)
ifneq ($(and $(HAVE_CXX),$(filter 0,$(SANITIZE))),)
SCHEDULED += $(RANKED:%=build/emulated/train_gpt_%)
endif

# test_mpi.sh runs a build with MPI, which is this Makefile's own.
MPI_PROGRAM := build/emu-fp32-mpi/train_gpt
ifneq ($(and $(HAVE_CXX),$(HAVE_MPI),$(filter cpu,$(DEVICE)),$(filter %test_mpi.sh,$(RUN_SHELL)),$(filter 0,$(SANITIZE))),)
SCHEDULED += build/emulated/train_gpt_fp32 $(MPI_PROGRAM)
$(MPI_PROGRAM): FORCE | $(call emu_objects,)
	@$(MAKE) --no-print-directory DEVICE=emu PRECISION=fp32 MASTER=fp32 MOMENTS=fp32 MPI=1 CFLAGS="-O1 $(NATIVE)" TESTS= $@
endif

gpu-precisions:
	@echo $(PRECISIONS)

test: $(if $(strip $(RUN_SHELL)),$(PROGRAMS)) $(RUN_UNIT) $(RUN_EMU) $(RUN_MODELS) $(SCHEDULED)
	@$(NO_EMU)
	@BUILD=$(B) REHEARSED="$(REHEARSED)" exec sh dev/test/run.sh $(RUN_UNIT) $(RUN_EMU) $(RUN_MODELS) $(RUN_SHELL)

# The emulator's own tests, then the GPU trainer's on it.
test-emu: $(if $(HAVE_CXX),$(addprefix $(B)/,$(EMU_TESTS)) $(EMU_MODELS) $(SCHEDULED))
	@$(NO_EMU)
	@$(if $(HAVE_CXX),BUILD=$(B) exec sh dev/test/run.sh $(addprefix $(B)/,$(EMU_TESTS)) $(EMU_MODELS) dev/test/test_emu_schedules.sh)

# Every .cu file with nvcc for each architecture, and what its kernels take.
cuda-check:
	@NVCC="$(NVCC)" CXX="$(CXX)" CUDA_ARCHS="$(or $(CUDA_ARCH),$(CUDA_ARCHS))" PRECISIONS="$(or $(CHECK_PRECISIONS),$(PRECISIONS))" CHECK="$(CHECK)" \
	    PCRE2_FLAGS="$(PCRE2_FLAGS)" PCRE2_LIBS="$(PCRE2_LIBS)" NCCL_FLAGS="$(NCCL_FLAGS)" NCCL_LIBS="$(NCCL_LIBS)" \
	    sh scripts/cuda_check.sh

# What nvcc makes of the GPU trainer, on a PTX emulator where there is one.
test-compiled: $(B)/tokenize
	@NVCC="$(NVCC)" CXX="$(CXX)" BUILD=$(B) PTX_EMULATOR="$(PTX_EMULATOR)" PRECISIONS="$(or $(CHECK_PRECISIONS),$(PRECISIONS))" MODES="$(MODES)" \
	    ARCHS="$(CUDA_ARCH:%a=%)" CHECK="$(CHECK)" NCCL_FLAGS="$(NCCL_FLAGS)" NCCL_LIBS="$(NCCL_LIBS)" sh dev/test/compiled.sh

test-exhaustive: $(addprefix $(B)/,$(EXHAUSTIVE)) | $(B)/flags
	@BUILD=$(B) TEST_TIMEOUT=36000 exec sh dev/test/run.sh $^ $(wildcard dev/test/exhaustive_*.sh)

bench: $(PROGRAMS) $(addprefix $(B)/,$(BENCHES))
	@set -e; for bench in $(BENCHES); do echo "== $$bench"; BUILD=$(B) $(B)/$$bench; done
	@MAKE="$(MAKE)" sh dev/bench/modes.sh
	@LLMC="$(LLMC)" PYTHON="$(PYTHON)" sh dev/bench/peers.sh

# DEMOS="sum weight" prints only these.
demos: $(B)/demos
	@$(B)/demos $(DEMOS)

check-headers:
	@sh dev/test/check_headers.sh

format:
	clang-format -i $(wildcard *.c *.cu llmc/*.h llmc/*.cuh data/*.c dev/*/*.c dev/*/*.h)

clean:
	rm -rf build train_gpt test_gpt profile_gpt data/tokenize data/self_train_*.bin data/self_val_*.bin

define HELP
Targets
  all            ./train_gpt and data/tokenize (the default)
  run            build, make the embedded dataset, train on it for about a minute, sample, plot
  test           every unit test, then every shell test; ends with 'N passed, N failed'
  test-emu       the tests of dev/emu, the CUDA runtime for the CPU, and of the GPU trainer on it (part of `test`)
  cuda-check     compile every .cu file with nvcc, in each precision for each architecture; registers, shared memory and
                 spills of each kernel; fails on warnings and on spills in hot kernels. CHECK=quick: each once
  test-compiled  run nvcc's code of the GPU trainer without a GPU, on one and on two ranks: PTX_EMULATOR=folder names a PTX
                 emulator (dev/test/compiled.sh says what that is); CHECK=quick: each precision, mode and
                 architecture once
  test-exhaustive  what takes minutes: every fast number conversion on all 2^32 floats; each precision's loss after 200
                 steps against fp32's, over seeds
  test_gpt       build ./test_gpt, the trainer against reference numbers
  profile_gpt    DEVICE=cuda, emu: build ./profile_gpt, the time of a step operation by operation
  data           the embedded dataset, data/self_train_000000.bin and data/self_val_000000.bin
  bench          whole steps and kernels as shares of this machine's peak; other trainers beside them:
                 LLMC=/path/to/llm.c PYTHON=/path/to/python-with-torch
  demos          what the number formats do, in numbers: DEMOS="sum weight" prints only these
  check-headers  compile each llmc/*.h alone, twice and in two linked files, as C11 and C++17
  format         clang-format on every source file
  clean          remove everything built
Variables (now)
  DEVICE=$(DEVICE)        one of: $(DEVICES)
  PRECISION=$(PRECISION)    one of: $(PRECISIONS)
  MASTER=$(MASTER)       one of: $(MASTERS); all but fp32 keep bf16 weights only (nearest: a negative control)
  MOMENTS=$(MOMENTS)      one of: $(MOMENTSES); how AdamW's moments are stored
  CC=$(CC) CXX=$(CXX)   compilers
  CUDA_HOME=$(CUDA_HOME) NVCC=$(NVCC)   for DEVICE=cuda; CUDA_ARCH="90a": targets (default: the GPU that is
                    here, else $(CUDA_ARCHS), with PTX)
  CFLAGS=...        replaces -O3 -march=native; what the numbers rely on is added to it
  OPENMP=$(OPENMP) PCRE2=$(PCRE2) NCCL=$(NCCL) MPI=$(MPI)   auto: use if found; 1: stop if missing; 0: do without. MPI=1 builds into a
                    folder of its own; MPICC=$(MPICC) says how
  SANITIZE=$(SANITIZE)        1: address and undefined-behaviour sanitizers, in a build folder of their own
  TESTS="a b"       run only dev/test/test_a.* and test_b.*
  RUN_OUT=FOLDER    output of make run (default: the first log/run_N that is free);  RUN_OPTIONS="..." its options
This configuration builds into $(B)/
endef
help:
	@$(info $(HELP)):
