/* The register tiles for 32 registers of 64 bytes, which kernels of all cells share: see body.h. */
#define LEVEL avx512
#define BYTES 64
#define ROWS 8
#define V8 3
#define V4 6
#define V3 7
#define V2 8
#define V1 8
