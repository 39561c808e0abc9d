# bash completion of ctx, and of the objects of its mount when they are typed as paths.
# Load it with: eval "$(ctx completion bash)"; once more to learn of new objects.

_ctx_complete() {
    local -a words=()
    local i word glue= whole start
    # Readline splits words at = and :, which are part of them here.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ ${#words[@]} -gt 0 && ( $glue || $word == [=:]* ) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        if [[ $word == *[=:] ]]; then glue=1; else glue=; fi
    done
    mapfile -t COMPREPLY < <(command ctx complete -- "${words[@]}" 2>/dev/null)
    whole=${words[-1]}
    start=${whole%"${whole##*[=:]}"}
    for i in "${!COMPREPLY[@]}"; do
        if [[ ${COMPREPLY[i]} == *[=/] ]]; then compopt -o nospace 2>/dev/null; fi
        COMPREPLY[i]=${COMPREPLY[i]#"$start"}
        if [[ ${COMPREPLY[i]} == *[[:space:]]* ]]; then printf -v "COMPREPLY[i]" %q "${COMPREPLY[i]}"; fi
    done
}

complete -o default -F _ctx_complete ctx cortex
# bash knows commands by name or whole path and has no patterns, so every object is registered by its path.
while IFS= read -r _ctx_path; do
    complete -o default -F _ctx_complete "$_ctx_path"
done < <(command ctx complete 2>/dev/null)
unset _ctx_path
