/* SPDX-License-Identifier: Apache-2.0
 * Compiler extensions, all in one place: attributes and alignment that C11 lacks or spells
 * differently between gcc and clang. Nothing else in the tree uses an extension. */
#ifndef SPL_BASE_COMPILER_H
#define SPL_BASE_COMPILER_H

#if defined(__GNUC__)
#define SPL_PRINTF(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))
#define SPL_LIKELY(x) __builtin_expect(!!(x), 1)
#define SPL_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define SPL_ALWAYS_INLINE inline __attribute__((always_inline))
#define SPL_NOINLINE __attribute__((noinline))
#define SPL_MUST_USE __attribute__((warn_unused_result))
#define SPL_PREFETCH_T0(p) __builtin_prefetch((p), 0, 3)
#define SPL_PREFETCH_T1(p) __builtin_prefetch((p), 0, 2)
#define SPL_PREFETCH_WRITE(p) __builtin_prefetch((p), 1, 3)
#else
#define SPL_PRINTF(fmt_index, first_arg)
#define SPL_LIKELY(x) (x)
#define SPL_UNLIKELY(x) (x)
#define SPL_ALWAYS_INLINE inline
#define SPL_NOINLINE
#define SPL_MUST_USE
#define SPL_PREFETCH_T0(p) ((void)(p))
#define SPL_PREFETCH_T1(p) ((void)(p))
#define SPL_PREFETCH_WRITE(p) ((void)(p))
#endif

enum { SPL_CACHE_LINE = 64 };

#define SPL_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
