from qkv.inference.progress import on_progress, track


def test_every_item_is_reported_after_it_is_used():
    events = []
    with on_progress(lambda done, total: events.append((done, total))):
        for item in track(["a", "b"]):
            events.append(item)
        assert list(track(iter("c"))) == ["c"]
    assert events == ["a", (1, 2), "b", (2, 2), (1, None)]
    assert list(track("d")) == ["d"]  # nobody listens
    assert len(events) == 5
