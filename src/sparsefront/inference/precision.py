"""Stub."""

import torch


def activation_amax(net, batches):
    found = {}

    def hook(name):
        def note(module, args):
            found[name] = max(found.get(name, 0.0), float(args[0].abs().max()))

        return note

    handles = [m.register_forward_pre_hook(hook(n)) for n, m in net.named_modules() if isinstance(m, torch.nn.Linear)]
    with torch.inference_mode():
        for batch in batches:
            net(**batch)
    for handle in handles:
        handle.remove()
    return found


def rounded(x):
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return ((x.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(x.dtype)
