import pytest

from qkv.data import read_points
from qkv.data.files.points import parse_numbers
from qkv.errors import QkvError


def write(tmp_path, text):
    path = tmp_path / "points.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("heading", ["", "x,y,color\n", "\ufeffx,y,color\n"])
def test_numbers_and_a_class(tmp_path, heading):
    points = read_points(write(tmp_path, f'{heading}1,2.5,red\n\n-3e2, 4 ,"blue"\r\n0,0,red'))
    assert points.classes == ("blue", "red")
    assert points.examples.inputs.tolist() == [[1.0, 2.5], [-300.0, 4.0], [0.0, 0.0]]
    assert points.examples.labels.tolist() == [1, 0, 1]


def test_classes_may_be_given(tmp_path):
    points = read_points(write(tmp_path, "1,2,red\n"), ("green", "red"))
    assert points.examples.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,a\n1,x,b\n", r"line 2: 'x' in column 2 is not a finite number, in .*points\.csv"),
        ("1,2,a\nnan,2,b\n", "line 2: 'nan' in column 1 is not a finite number"),
        ("1,x,a\n1,2,b\n", "line 1: 'x' in column 2 is not a finite number"),
        ("nan,nan,a\n1,2,a\n3,4,b\n", "line 1: 'nan' in column 1 is not a finite number"),
        ("inf,-inf,a\n1,2,a\n3,4,b\n", "line 1: 'inf' in column 1 is not a finite number"),
        ("1,2,a\n1,-1e300,b\n", r"line 2: '-1e300' in column 2 is outside the range of float32, \+-3\.4e\+38"),
        ("1,2,a\n1,2,3,b\n", "line 2: 4 columns, expected 3 as above"),
        ("1,2,a\n3,4,a\n", "all 2 points are of class 'a'; at least two classes are needed, in .*points"),
        ("", "the file has no points, in .*points"),
        ("x,y,class\n", "the file has no points"),
        ("1|2|a\n", "line 1: one column, expected numbers and a class, separated by commas, tabs or semicolons"),
        (b"1,2,\xff\n", "line 1: 'utf-8' codec can't decode byte 0xff"),
        ('1,2,"a\n', "line 1: unexpected end of data"),
    ],
)
def test_bad_files_are_one_sentence_with_the_line(tmp_path, text, message):
    with pytest.raises(QkvError, match=message):
        read_points(write(tmp_path, text))


def test_an_unknown_class(tmp_path):
    with pytest.raises(QkvError, match="line 2: class must be one of green, red, got 'blue'"):
        read_points(write(tmp_path, "1,2,red\n3,4,blue\n"), ("green", "red"))
    with pytest.raises(QkvError, match=r"there is no file point\.csv, .*; did you mean points\.csv"):
        read_points(write(tmp_path, "").with_name("point.csv"))


def test_parse_numbers():
    assert parse_numbers("1, 2.5 -3") == [1, 2.5, -3]
    with pytest.raises(ValueError, match="'b' in '1 b' is not a finite number"):
        parse_numbers("1 b")


def test_coordinates_are_float64(tmp_path):
    points = read_points(write(tmp_path, "1700000000,a\n1700000001,b\n"))
    assert points.examples.inputs.tolist() == [[1700000000], [1700000001]]
    with pytest.raises(ValueError, match="'1e300' in '1 1e300' is outside the range of float32"):
        parse_numbers("1 1e300")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("1\t2.5\tred\n-3e2\t4\tblue\n", "-1"),
        ("1;2,5;red\n-3e2;4;blue\n", "-1"),
        ('"kind, of";x;y\nred;1;2,5\nblue;-300;4\n', "kind, of"),
        ("x,color,y\n1,red,2.5\n-300,blue,4\n", "color"),
        ("x,color,y\n1,red,2.5\n-300,blue,4\n", "1"),
        ("red,1,2.5\nblue,-300,4\n", "0"),
        ("red,1,2.5\nblue,-300,4\n", "-3"),
    ],
)
def test_separators_and_the_column_of_the_class(tmp_path, text, label):
    points = read_points(write(tmp_path, text), label=label)
    assert points.classes == ("blue", "red")
    assert points.examples.inputs.tolist() == [[1.0, 2.5], [-300.0, 4.0]]
    assert points.examples.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        ("x,y,color\n1,2,red\n", "colour", r"data.label=colour: no such column among 3 \(x, y, color\)"),
        ("1,2,red\n", "color", r"data.label=color: no such column among 3 \(the file has no header\); give a name"),
        ("1,2,red\n", "3", "data.label=3: no such column among 3 .* or a number from 0 to 2"),
        ("red,1,x\n", "0", "line 1: 'x' in column 3 is not a finite number"),
    ],
)
def test_bad_input_columns(tmp_path, text, label, message):
    with pytest.raises(QkvError, match=message):
        read_points(write(tmp_path, text), label=label)


def test_bad_input_a_quantity_is_not_a_class(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("".join(f"{n},{n * n / 7}\n" for n in range(40)))
    with pytest.raises(QkvError, match="holds 40 different numbers in 40 lines, so it is a quantity and not a class"):
        read_points(path)
    path.write_text("".join(f"{n},{n % 19}\n" for n in range(40)))
    assert len(read_points(path).classes) == 19


def test_bad_input_a_line_without_an_end(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"1,a\n" + b"0" * (2**20 + 1) + b"\n2,b\n")
    with pytest.raises(QkvError, match="line 2 is longer than 1,048,576 bytes"):
        read_points(path)
    with path.open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(QkvError, match=r"a line is longer than 67,108,864 bytes, so this is not a text file"):
        read_points(path)
