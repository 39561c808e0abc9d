/*
 * cortexfs_plugin.h: the functions of a shared library that is a plugin, version 1 of the native ABI.
 *
 * The library exports one function, cortex_plugin_init, which fills in a table of functions. All text is
 * UTF-8, and all but a tool's name is JSON. docs/plugins.md has an example. C11 or C++11 is enough.
 *
 * The rules of memory
 *   - The host lends its buffers for the call: do not keep them, do not free them. They do not end in NUL.
 *   - The host passes each buffer that you return to your buffer_free, once, from any thread, even if empty.
 *   - A null `ptr` with `len` 0 is the empty buffer.
 *
 * The rules of threads
 *   - One state serves all calls, which come from many threads at once. The host calls plugin_drop once,
 *     while no call is under way, or never if the process is killed.
 *   - Each call runs as its caller, with the caller's working directory and umask.
 *
 * A crash, an exit or a hang ends only this library's process. The calls that ran in it fail.
 */
#ifndef CORTEXFS_PLUGIN_H
#define CORTEXFS_PLUGIN_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CORTEX_ABI_VERSION 1u

typedef struct CortexBuffer {
    uint8_t *ptr;
    size_t len; /* bytes of text */
    size_t cap; /* for your own use in buffer_free; 0 in the host's buffers */
} CortexBuffer;

typedef struct CortexHostApi {
    uint32_t abi_version; /* of the host */
} CortexHostApi;

typedef struct CortexPluginApi {
    uint32_t abi_version; /* CORTEX_ABI_VERSION */
    void *plugin;         /* your state, passed to every function; not NULL */
    /* {"name":"...","version":"...","description":"..."}, the first two as in manifest.toml */
    CortexBuffer (*plugin_info)(void *plugin);
    size_t (*tool_count)(void *plugin); /* called once */
    /* {"name":"...","description":"...","input_schema":{...},"timeout_secs":null,"capabilities":
       {"emits_progress":false,"emits_observer_text":false,"background_safe":false,"effects":[...]}}
       With "dry_run_flag":true beside them the tool takes --dry-run. If the invocation has "dry_run":true,
       the tool reports what it would do, and does nothing. Only CortexFS knows this flag. */
    CortexBuffer (*tool_descriptor)(void *plugin, size_t index);
    /* `input` fits the schema. `invocation`: {"tool_name":"...","session_id":null,"actor":null,"source":null,
       "execution_scope":"foreground"}. Returns {"output":"...","media":[],"is_error":false}. */
    CortexBuffer (*tool_execute)(void *plugin, CortexBuffer name, CortexBuffer input, CortexBuffer invocation);
    void (*plugin_drop)(void *plugin);
    void (*buffer_free)(CortexBuffer buffer);
} CortexPluginApi;

#if defined(__cplusplus)
#define CORTEX_ASSERT_(what) static_assert(what, #what)
#else
#define CORTEX_ASSERT_(what) _Static_assert(what, #what)
#endif
#if UINTPTR_MAX == UINT64_MAX
CORTEX_ASSERT_(sizeof(CortexBuffer) == 24);
CORTEX_ASSERT_(sizeof(CortexHostApi) == 4);
CORTEX_ASSERT_(sizeof(CortexPluginApi) == 64);
#endif

#if defined(__GNUC__)
#define CORTEX_EXPORT __attribute__((visibility("default")))
#else
#define CORTEX_EXPORT
#endif

/* The only export. Returns 0 if the table is filled in, -1 for a null pointer, -2 for another version. */
CORTEX_EXPORT int32_t cortex_plugin_init(const CortexHostApi *host, CortexPluginApi *plugin);

/* ---- Helpers. They need cortex_buffer_free as buffer_free, which CORTEX_PLUGIN puts into the table. ---- */

/* Returns a copy of `len` bytes, or an empty buffer if there is no memory. */
static inline CortexBuffer cortex_bytes(const void *bytes, size_t len)
{
    CortexBuffer made = {NULL, 0, 0};
    made.ptr = (uint8_t *)malloc(len ? len : 1);
    if (made.ptr) {
        memcpy(made.ptr, bytes, len);
        made.len = made.cap = len;
    }
    return made;
}

static inline CortexBuffer cortex_text(const char *text)
{
    return cortex_bytes(text, strlen(text));
}

static inline void cortex_buffer_free(CortexBuffer buffer)
{
    free(buffer.ptr);
}

/* Returns the result of a tool, with `len` bytes of UTF-8 as its output. */
static inline CortexBuffer cortex_result_bytes(const char *output, size_t len, int is_error)
{
    static const char hex[] = "0123456789abcdef";
    const char *end = is_error ? "\",\"media\":[],\"is_error\":true}" : "\",\"media\":[],\"is_error\":false}";
    CortexBuffer made = {NULL, 0, 0};
    size_t i, n = 0;
    char *text = (char *)malloc(6 * len + 64);
    if (!text)
        return made;
    memcpy(text, "{\"output\":\"", 11);
    n = 11;
    for (i = 0; i < len; i++) {
        unsigned char c = (unsigned char)output[i];
        if (c == '"' || c == '\\') {
            text[n++] = '\\';
            text[n++] = (char)c;
        } else if (c < 0x20) {
            memcpy(text + n, "\\u00", 4);
            text[n + 4] = hex[c >> 4];
            text[n + 5] = hex[c & 15];
            n += 6;
        } else {
            text[n++] = (char)c;
        }
    }
    memcpy(text + n, end, strlen(end));
    made.ptr = (uint8_t *)text;
    made.len = made.cap = n + strlen(end);
    return made;
}

/* The same for a text. An error that begins with "tool error: invalid input: " gives scripts the exit status
   2 (EINVAL), and one that begins with "tool error: execution failed: " gives 1 (EIO). */
static inline CortexBuffer cortex_result(const char *output, int is_error)
{
    return cortex_result_bytes(output, strlen(output), is_error);
}

/* Defines cortex_plugin_init. Use it once in a library. */
#define CORTEX_PLUGIN(state, info, count, descriptor, execute, drop)                          \
    CORTEX_EXPORT int32_t cortex_plugin_init(const CortexHostApi *host, CortexPluginApi *plugin) \
    {                                                                                         \
        if (!host || !plugin)                                                                 \
            return -1;                                                                        \
        if (host->abi_version != CORTEX_ABI_VERSION)                                          \
            return -2;                                                                        \
        plugin->abi_version = CORTEX_ABI_VERSION;                                             \
        plugin->plugin = (state);                                                             \
        plugin->plugin_info = (info);                                                         \
        plugin->tool_count = (count);                                                         \
        plugin->tool_descriptor = (descriptor);                                               \
        plugin->tool_execute = (execute);                                                     \
        plugin->plugin_drop = (drop);                                                         \
        plugin->buffer_free = cortex_buffer_free;                                             \
        return 0;                                                                             \
    }

#ifdef __cplusplus
}
#endif

#endif
