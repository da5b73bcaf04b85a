import pytest

from qkv.train.parallel.mesh import Coordinates, Mesh, choose_mesh, parse_mesh


def test_every_rank_has_its_own_coordinates():
    mesh = Mesh(data=2, shard=3, sequence=5)
    found = [mesh.coordinates(rank) for rank in range(mesh.processes)]
    assert found == [Coordinates(d, s, t) for d in range(2) for s in range(3) for t in range(5)]
    assert mesh.batch_shards == 6


def test_parse_reads_what_str_writes():
    mesh = Mesh(data=2, sequence=3)
    assert parse_mesh(str(mesh)) == mesh == parse_mesh("sequence=3, data=2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sequnce=2", "unknown mesh axis 'sequnce'.*sequence"),
        ("data", "data needs a whole number"),
        ("data=2.5", "data needs a whole number"),
        ("data=2,data=3", "names data twice"),
        ("data=0", "mesh axis data must be at least 1, got 0"),
        ("", "mesh axis"),
    ],
)
def test_wrong_mesh(text, message):
    with pytest.raises(ValueError, match=message):
        parse_mesh(text)


def test_all_processes_are_replicas_unless_a_mesh_is_requested():
    assert choose_mesh(None, 4) == Mesh(data=4)
    assert choose_mesh(Mesh(shard=4), 4) == Mesh(shard=4)
    with pytest.raises(ValueError, match="needs 6 processes, got 4"):
        choose_mesh(Mesh(data=2, sequence=3), 4)
