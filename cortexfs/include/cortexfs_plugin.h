/*
 * cortexfs_plugin.h: what a shared library offers to be a plugin, version 1 of the native ABI.
 *
 * The library exports one function, cortex_plugin_init, which fills in a table of functions. All text is
 * UTF-8, and all but a tool's name is JSON. docs/plugins.md has an example; C11 and C++11 will do.
 *
 * The rules of memory
 *   - What the host passes in is lent for the call: do not keep it, do not free it. It does not end in NUL.
 *   - What you return goes back to your own buffer_free, once, from any thread, also when it is empty.
 *   - A null `ptr` with `len` 0 is the empty buffer.
 *
 * The rules of threads
 *   - One state serves all calls, which come from many threads at once. plugin_drop comes once, when no
 *     call is under way, or not at all when the process is killed.
 *   - Each call runs as its caller, with the working directory and umask of the caller's.
 *
 * A crash, an exit or a hang ends this library's process and nothing else; what was running in it fails.
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
    size_t cap; /* for your own use in buffer_free; 0 in buffers of the host */
} CortexBuffer;

typedef struct CortexHostApi {
    uint32_t abi_version; /* of the host */
} CortexHostApi;

typedef struct CortexPluginApi {
    uint32_t abi_version; /* CORTEX_ABI_VERSION */
    void *plugin;         /* your state, passed to every function; not NULL */
    /* {"name":"...","version":"...","description":"..."}, the first two as in manifest.toml */
    CortexBuffer (*plugin_info)(void *plugin);
    size_t (*tool_count)(void *plugin); /* asked once */
    /* {"name":"...","description":"...","input_schema":{...},"timeout_secs":null,"capabilities":
       {"emits_progress":false,"emits_observer_text":false,"background_safe":false,"effects":[...]}}
       With "dry_run_flag":true beside them the tool takes --dry-run: its invocation then has "dry_run":true, and
       it says what it would do, and does nothing. Other hosts than CortexFS do not know the word. */
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

/* The one symbol. 0: the table is filled in; -1: a pointer was null; -2: the host speaks another version. */
CORTEX_EXPORT int32_t cortex_plugin_init(const CortexHostApi *host, CortexPluginApi *plugin);

/* ---- Helpers. Whoever uses them uses cortex_buffer_free, which CORTEX_PLUGIN puts into the table. ---- */

/* A copy of `len` bytes; empty when there is no memory. */
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

/* The result of a tool: `len` bytes of UTF-8 as its output. */
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

/* An error that begins with "tool error: invalid input: " or "tool error: execution failed: " is known as
   such to scripts: exit status 2 (EINVAL), or 1 (EIO). */
static inline CortexBuffer cortex_result(const char *output, int is_error)
{
    return cortex_result_bytes(output, strlen(output), is_error);
}

/* Define cortex_plugin_init, once in a library. */
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
