def replacements_of(result, checker):
    return None


def fix_once(*a, **k):
    raise NotImplementedError


def fix_files(*a, **k):
    raise NotImplementedError
