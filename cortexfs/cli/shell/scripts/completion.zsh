#compdef ctx cortex
# zsh completion of ctx, and of the objects of its mount when they are typed as paths.
# Load it after compinit with: eval "$(ctx completion zsh)", or save it as _ctx in a directory of fpath.

_ctx() {
    local -a found
    found=("${(@f)$(command ctx complete -- "${(@Q)words[1,CURRENT]}" 2>/dev/null)}")
    found=(${found:#})
    if (( $#found == 0 )); then
        _files
        return
    fi
    compadd -S '' -- ${(M)found:#*[=/]}
    compadd -- ${found:#*[=/]}
}

if [[ $funcstack[1] == _ctx ]]; then
    _ctx "$@"
else
    compdef _ctx ctx cortex -p '(|*/)(tool|agent|model)/*'
fi
