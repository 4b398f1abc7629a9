/* onnxruntime's C interface as Orthrus offers it: generated, see table.py of the package orthrus.native.dropin. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ORT_API_VERSION @LEVEL@

#ifdef __cplusplus
extern "C" {
#endif

/* Marks that onnxruntime's own headers and programs written for them put before parameters; all mean nothing here. */
#define _In_
#define _In_z_
#define _In_opt_
#define _In_opt_z_
#define _In_reads_(X)
#define _In_reads_opt_
#define _Out_
#define _Out_opt_
#define _Out_writes_(X)
#define _Out_writes_opt_(X)
#define _Out_writes_all_(X)
#define _Out_writes_bytes_all_(X)
#define _Outptr_
#define _Outptr_opt_
#define _Outptr_result_maybenull_
#define _Outptr_result_maybenull_z_
#define _Outptr_result_buffer_maybenull_(X)
#define _Inout_
#define _Inout_opt_
#define _Inout_updates_(X)
#define _Inout_updates_all_(X)
#define _Frees_ptr_opt_
#define _Ret_maybenull_
#define _Ret_notnull_
#define _Check_return_
#define _Success_(X)

#define ORT_ALL_ARGS_NONNULL __attribute__((nonnull))
#define ORT_EXPORT __attribute__((visibility("default")))
#define ORT_API_CALL
#define ORT_MUST_USE_RESULT __attribute__((warn_unused_result))
#define ORTCHAR_T char
#ifndef ORT_TSTR
#define ORT_TSTR(X) X
#define ORT_TSTR_ON_MACRO(X) X
#endif
#ifndef ORT_FILE
#define ORT_FILE_INTERNAL(X) ORT_TSTR(X)
#define ORT_FILE ORT_FILE_INTERNAL(__FILE__)
#endif
#ifdef __cplusplus
#define NO_EXCEPTION noexcept
#else
#define NO_EXCEPTION
#endif
#define ORT_API(TYPE, NAME, ...) TYPE ORT_API_CALL NAME(__VA_ARGS__) NO_EXCEPTION
#define ORT_API_T(TYPE, NAME, ...) TYPE(ORT_API_CALL* NAME)(__VA_ARGS__) NO_EXCEPTION
#define ORT_API_STATUS(NAME, ...) OrtStatusPtr ORT_API_CALL NAME(__VA_ARGS__) NO_EXCEPTION ORT_MUST_USE_RESULT
#define ORT_API2_STATUS(NAME, ...) OrtStatusPtr(ORT_API_CALL* NAME)(__VA_ARGS__) NO_EXCEPTION ORT_MUST_USE_RESULT
#define ORT_API_STATUS_IMPL(NAME, ...) OrtStatusPtr ORT_API_CALL NAME(__VA_ARGS__) NO_EXCEPTION
#define ORT_CLASS_RELEASE(X) void(ORT_API_CALL* Release##X)(Ort##X* input)
#define ORT_RUNTIME_CLASS(X) \
  struct Ort##X;             \
  typedef struct Ort##X Ort##X

typedef const struct OrtCustomHandleType {
  char __place_holder;
} * OrtCustomThreadHandle;

