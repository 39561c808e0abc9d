# fish completion of ctx, and of the objects of its mount when they are typed as paths.
# Load it with: ctx completion fish | source; with newer fish, once more to learn of new objects.

# Where it finds nothing, fish offers files by itself, with what it knows of quotes and of ~.
function __ctx_find
    set -l word (commandline -ct)
    set -g __ctx_found (command ctx complete -- (commandline -opc) (string unescape -- $word; or printf '%s\n' $word) 2>/dev/null)
    test (count $__ctx_found) -gt 0
end

complete -c ctx -f -n __ctx_find -a '$__ctx_found'
complete -c cortex -f -n __ctx_find -a '$__ctx_found'
# Older fish knows patterns of paths; for newer fish, each object is registered by its path, as for bash.
complete -p '*/__ctx/*' -f -a yes
if string match -q yes (complete -C '/x/__ctx/y ')
    set __ctx_paths '*/'{tool,agent,model}'/*'
else
    set __ctx_paths (command ctx complete 2>/dev/null)
end
complete -e -p '*/__ctx/*'
for __ctx_path in $__ctx_paths
    complete -p $__ctx_path -f -n __ctx_find -a '$__ctx_found'
end
set -e __ctx_paths __ctx_path
