# SPDX-License-Identifier: Apache-2.0
# One Makefile, no configure step. Products: $(BUILD)/libsplash.a, $(BUILD)/splash and one program
# per tests/*/test_*.c. ISA flags are given per file, by the file's name, and nowhere else.

CC      ?= cc
BUILD   ?= build
OPT     ?= -O3
# MODE: release (default), debug, asan, ubsan, tsan
MODE    ?= release
PKGS    := jansson libpcre2-8 libutf8proc libcrypto
SRVPKGS := libmicrohttpd libedit
PKG_CONFIG ?= pkg-config

MACHINE := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
KERNEL  := $(shell uname -s)
ifneq ($(filter x86_64 amd64,$(MACHINE)),)
ISA := x86
else ifneq ($(filter aarch64 arm64,$(MACHINE)),)
ISA := arm
else
ISA := none
endif

V ?= 0
ifeq ($(V),0)
Q := @
endif
WARN := -Wall -Wextra -Wshadow -Wconversion -Wvla -Wmissing-prototypes -Wstrict-prototypes -Werror
BASE := -std=c11 -Iinclude -Isrc -I. -ffp-contract=off -fno-math-errno -pthread -g
ifeq ($(KERNEL),Darwin)
BASE += -D_DARWIN_C_SOURCE
else
BASE += -D_GNU_SOURCE
endif
ifeq ($(MODE),debug)
OPT := -O1
BASE += -DSPL_DEBUG
else ifeq ($(MODE),asan)
OPT := -O1
BASE += -DSPL_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
LINK := -fsanitize=address,undefined
else ifeq ($(MODE),tsan)
OPT := -O1
BASE += -DSPL_DEBUG -fsanitize=thread
LINK := -fsanitize=thread
endif
COMMIT := $(shell git describe --always --dirty --abbrev=10 2>/dev/null || echo unknown)

DEPFLAGS := $(shell $(PKG_CONFIG) --cflags $(PKGS) 2>/dev/null)
DEPLIBS  := $(shell $(PKG_CONFIG) --libs $(PKGS) 2>/dev/null)
SRVFLAGS := $(shell $(PKG_CONFIG) --cflags $(SRVPKGS) 2>/dev/null)
SRVLIBS  := $(shell $(PKG_CONFIG) --libs $(SRVPKGS) 2>/dev/null)
CFLAGS_ALL = $(BASE) $(OPT) $(WARN) $(DEPFLAGS) $(SRVFLAGS) $(CFLAGS)

LIB_SRC := $(wildcard src/*/*.c src/kernels/ref/*.c bench/*.c)
ifneq ($(ISA),none)
LIB_SRC += $(wildcard src/kernels/$(ISA)/*.c bench/$(ISA)/*.c)
endif
BIN_SRC := $(wildcard server/*.c cli/*.c)
TEST_SRC := $(wildcard tests/unit/test_*.c tests/kernels/test_*.c tests/toy/test_*.c tests/nano/test_*.c tests/torture/test_*.c)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
BIN_OBJ := $(BIN_SRC:%.c=$(BUILD)/%.o)
SUPPORT_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/support/*.c) $(filter-out cli/main.c,$(BIN_SRC)))
TESTS := $(TEST_SRC:%.c=$(BUILD)/%)
FUZZERS := $(FUZZ_SRC:%.c=$(BUILD)/%)

.PHONY: all lib fake tests fuzzers check clean lint format
.SECONDARY:
all: $(BUILD)/splash
lib: $(BUILD)/libsplash.a
tests: $(TESTS) $(BUILD)/tests/parity/logits_tool
fuzzers: $(FUZZERS)

$(BUILD)/%_avx2.o: ISAFLAGS := -mavx2 -mfma -mf16c
$(BUILD)/%_avxvnni.o: ISAFLAGS := -mavx2 -mfma -mf16c -mavxvnni
$(BUILD)/%_avx512vnni.o: ISAFLAGS := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mprefer-vector-width=512
$(BUILD)/%_amx.o: ISAFLAGS := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mgfni -mamx-tile -mamx-int8 -mprefer-vector-width=512 -mtune=sapphirerapids
$(BUILD)/%/cpu_x86.o: ISAFLAGS := -mxsave
$(BUILD)/%_neon_dotprod.o: ISAFLAGS := -march=armv8.2-a+dotprod
$(BUILD)/%_neon_i8mm.o: ISAFLAGS := -march=armv8.2-a+dotprod+i8mm

$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) $(ISAFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/bench/%.o $(BUILD)/src/api/%.o $(BUILD)/cli/%.o: BASE += -DSPL_COMMIT='"$(COMMIT)"'

$(BUILD)/libsplash.a: $(LIB_OBJ)
	@rm -f $@
	$(Q)$(AR) rcs $@ $(LIB_OBJ)

$(BUILD)/splash: $(BIN_OBJ) $(BUILD)/libsplash.a
	$(Q)$(CC) $(LINK) -pthread $(LDFLAGS) $(BIN_OBJ) $(BUILD)/libsplash.a $(SRVLIBS) $(DEPLIBS) -lm -o $@

# The torture tests stand between the library and its allocator.
$(BUILD)/tests/torture/%: LDFLAGS += -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(SUPPORT_OBJ) $(BUILD)/libsplash.a
	$(Q)$(CC) $(LINK) -pthread $(LDFLAGS) $< $(SUPPORT_OBJ) $(BUILD)/libsplash.a $(SRVLIBS) $(DEPLIBS) -lcmocka -lm -o $@

# Driven by pytest (tests/pack, tests/parity); the library is all they need.
$(BUILD)/tests/pack/%: $(BUILD)/tests/pack/%.o $(BUILD)/libsplash.a
	$(Q)$(CC) $(LINK) -pthread $(LDFLAGS) $^ $(DEPLIBS) -lm -o $@
$(BUILD)/tests/parity/%: $(BUILD)/tests/parity/%.o $(BUILD)/libsplash.a
	$(Q)$(CC) $(LINK) -pthread $(LDFLAGS) $^ $(DEPLIBS) -lm -o $@

# The server and the command line on a scripted engine instead of a model, for tests/http and tests/cli.
fake: $(BUILD)/tests/http/splash_fake
$(BUILD)/tests/http/splash_fake: $(BUILD)/tests/http/fake_engine.o $(BIN_OBJ) $(BUILD)/libsplash.a
	$(Q)$(CC) $(LINK) -pthread $(LDFLAGS) $< $(BIN_OBJ) $(BUILD)/libsplash.a $(SRVLIBS) $(DEPLIBS) -lm -o $@

# The readers of request bodies need nothing of the engine.
HTTP_BODY_OBJ := $(addprefix $(BUILD)/server/,fields.o body_text.o gen_fields.o chat_body.o messages_body.o access.o)
$(BUILD)/tests/fuzz/fuzz_http_body: FUZZ_OBJ := $(HTTP_BODY_OBJ)
$(BUILD)/tests/fuzz/fuzz_http_body: $(HTTP_BODY_OBJ)

# With clang and FUZZ=libfuzzer the fuzzers search; otherwise they replay the files they are given.
ifeq ($(FUZZ),libfuzzer)
$(BUILD)/tests/fuzz/%: $(BUILD)/tests/fuzz/%.o $(BUILD)/libsplash.a
	$(Q)$(CC) $(LINK) -fsanitize=fuzzer -pthread $< $(FUZZ_OBJ) $(BUILD)/libsplash.a $(DEPLIBS) -lm -o $@
else
$(BUILD)/tests/fuzz/%: $(BUILD)/tests/fuzz/%.o $(BUILD)/tests/fuzz/replay.o $(BUILD)/libsplash.a
	$(Q)$(CC) $(LINK) -pthread $< $(FUZZ_OBJ) $(BUILD)/tests/fuzz/replay.o $(BUILD)/libsplash.a $(DEPLIBS) -lm -o $@
endif

# Kernel tests for AArch64 on any machine: cross compiler, no cmocka, an emulator.
ARM_CC  ?= aarch64-linux-gnu-gcc
ARM_RUN ?= qemu-aarch64-static -cpu max -L /usr/aarch64-linux-gnu
ARM_SRC := $(wildcard src/base/status.c src/model/geometry.c src/model/layout.c src/kernels/*.c src/kernels/ref/*.c \
             src/kernels/arm/*.c tests/support/kernel_test.c)
ARM_OBJ := $(ARM_SRC:%.c=$(BUILD)/neon/%.o)
ARM_TESTS := $(patsubst tests/kernels/%.c,$(BUILD)/neon/%,$(wildcard tests/kernels/test_*.c))
$(BUILD)/neon/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(Q)$(ARM_CC) $(BASE) -O2 $(WARN) -DSPL_NO_CMOCKA $(ISAFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/neon/test_%: $(BUILD)/neon/tests/kernels/test_%.o $(ARM_OBJ)
	$(Q)$(ARM_CC) $^ -lm -o $@
.PHONY: neon-test
neon-test: $(ARM_TESTS)
	$(Q)for t in $(ARM_TESTS); do echo $$t; $(ARM_RUN) $$t || exit 1; done
-include $(ARM_OBJ:.o=.d) $(wildcard $(BUILD)/neon/tests/kernels/*.d)

lint:
	@bad=0; for script in tools/lint/*.sh; do sh $$script || bad=1; done; exit $$bad

check:
	./test.sh

format:
	@. tools/clang_format.sh; . tools/lint_files.sh; tool=$$(find_clang_format) && "$$tool" -i $$(list_files "$$C_FILES")

clean:
	rm -rf $(BUILD)

-include $(LIB_OBJ:.o=.d) $(BIN_OBJ:.o=.d) $(wildcard $(BUILD)/tests/*/*.d)
