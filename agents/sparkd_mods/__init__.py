"""What sparkd changes in vLLM while vLLM is loaded: one mod a file or package, machinery in `_framework/`.

Runs in vLLM's own interpreter, so it imports the standard library only; a mod imports torch and vLLM inside
its functions. `sparkd mods list` shows the mods, docs/adding-a-mod.md how to add one.
"""
