# fish completion of ctx, and of the objects of its mount when they are typed as paths.
# Load it with: ctx completion fish | source

# Where it finds nothing, fish offers files by itself, with what it knows of quotes and of ~.
function __ctx_find
    set -l word (commandline -ct)
    set -g __ctx_found (command ctx complete -- (commandline -opc) (string unescape -- $word; or printf '%s\n' $word) 2>/dev/null)
    test (count $__ctx_found) -gt 0
end

complete -c ctx -f -n __ctx_find -a '$__ctx_found'
complete -c cortex -f -n __ctx_find -a '$__ctx_found'
for class in tool agent model
    complete -p "*/$class/*" -f -n __ctx_find -a '$__ctx_found'
end
