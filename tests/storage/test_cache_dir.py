from qkv.storage import cache_dir


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("QKV_CACHE", "/a")
    assert str(cache_dir()) == "/a"
    monkeypatch.delenv("QKV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert str(cache_dir()) == "/b/qkv"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert str(cache_dir()) == "/c/.cache/qkv"
