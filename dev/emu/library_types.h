// library_types.h: cudaDataType_t with CUDA's values, for the types this program names.
#ifndef EMU_LIBRARY_TYPES_H
#define EMU_LIBRARY_TYPES_H

typedef enum cudaDataType_t {
    CUDA_R_32F = 0,
    CUDA_R_16F = 2,
    CUDA_R_16BF = 14,
    CUDA_R_8F_E4M3 = 28,
    CUDA_R_8F_E5M2 = 29,
    CUDA_R_4F_E2M1 = 33
} cudaDataType_t;

#endif
