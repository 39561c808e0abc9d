# fish completion of ctx, and of the objects of its mount when they are typed as paths.
# Load it with: ctx completion fish | source

function __ctx_complete
    set -l found (command ctx complete -- (commandline -opc) (commandline -ct) 2>/dev/null)
    if test (count $found) -eq 0
        __fish_complete_path (commandline -ct)
    else
        string join \n -- $found
    end
end

complete -c ctx -f -a '(__ctx_complete)'
complete -c cortex -f -a '(__ctx_complete)'
for class in tool agent model
    complete -p "*/$class/*" -f -a '(__ctx_complete)'
end
