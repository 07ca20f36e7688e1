/* SPDX-License-Identifier: Apache-2.0
 * Linux: /proc/cpuinfo, whose x86 form has a "model name" and whose Arm form has numbers of maker and part. macOS:
 * sysctl. */
#include "base/cpu_name.h"

#include <stdio.h>
#include <string.h>

#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

/* Makes the text printable and drops blanks at both ends and double ones between. */
static void tidy(char *text) {
    char *to = text;
    for (const char *from = text; *from; from++) {
        char c = *from > ' ' && *from < 0x7f ? *from : ' ';
        if (c == ' ' && (to == text || to[-1] == ' ')) continue;
        *to++ = c;
    }
    if (to > text && to[-1] == ' ') to--;
    *to = '\0';
}

#ifndef __APPLE__
/* Value of a line "key : value", or NULL. */
static const char *value_of(const char *line, const char *key) {
    const char *colon = strchr(line, ':');
    return colon && strncmp(line, key, strlen(key)) == 0 ? colon + 1 : NULL;
}

static void read_name(const char *root, char *out, size_t n) {
    char path[1024], line[512], maker[64] = "", part[64] = "";
    int length = snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
    FILE *f = length > 0 && (size_t)length < sizeof path ? fopen(path, "r") : NULL;
    if (!f) return;
    while (!*out && fgets(line, sizeof line, f)) {
        const char *value;
        line[strcspn(line, "\n")] = '\0';
        if ((value = value_of(line, "model name")) != NULL) (void)snprintf(out, n, "%s", value);
        if ((value = value_of(line, "CPU implementer")) != NULL) (void)snprintf(maker, sizeof maker, "%.60s", value);
        if ((value = value_of(line, "CPU part")) != NULL) (void)snprintf(part, sizeof part, "%.60s", value);
    }
    if (!*out && *maker && *part) (void)snprintf(out, n, "Arm maker %s part %s", maker, part);
    (void)fclose(f);
}
#endif

void spl_cpu_name(const char *root, char *out, size_t n) {
    *out = '\0';
#ifdef __APPLE__
    (void)root;
    if (sysctlbyname("machdep.cpu.brand_string", out, &n, NULL, 0) != 0) *out = '\0';
#else
    read_name(root, out, n);
#endif
    tidy(out);
    if (!*out) (void)snprintf(out, n, "unknown processor");
}
