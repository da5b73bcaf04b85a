import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.pronunciation import cmu_dictionary
from qkv.pronunciation.normalization import normalize
from qkv.pronunciation.normalization.names.letters import LETTERS, is_spelled

MIXTURE = st.text(
    st.sampled_from("aAIVXst0159 .,:;/-–'\"$€%#@&+=°½²\n\t\x00é你🙂()mp") | st.characters(), min_size=0, max_size=60
)


FRAGMENTS = [*"$#@&+-–/.:,'\"°″²⁻₂¹½ⅷ٣μ ([<=~×^%", "1,000", "10^", "e5", "12", " km", "Dr. ", "May 3", "3:45", "1/2"]
FRAGMENTS += [
    "World War II",
    "iv",
    "@a.com",
    "v2.0",
    "B.C.",
    " N. ",
    ", PA 12345",
    "1-800-",
    "II",
    "'s",
    "USD",
    "million ",
]


def say(text):
    tokens = list(normalize(text, cmu_dictionary().lookup))
    assert "".join(token.text for token in tokens) == text
    return " ".join(word for token in tokens for word in token.words)


@settings(deadline=None)
@given(MIXTURE)
def test_every_character_is_in_exactly_one_token(text):
    position = 0
    for token in normalize(text, cmu_dictionary().lookup):
        assert token.start == position
        assert token.text
        position = token.end
    assert position == len(text)


@settings(deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12))
def test_every_mixture_of_fragments_has_words(fragments):
    text = "".join(fragments)
    tokens = list(normalize(text, cmu_dictionary().lookup))
    assert "".join(token.text for token in tokens) == text
    assert all(word for token in tokens for word in token.words)


@settings(deadline=None)
@given(st.integers(0, 10**12))
def test_commas_change_nothing(number):
    assert say(f"there are {number:,} of") == say(f"there are {number:,} of".replace(",", "")) or 1000 <= number < 2100


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # dates and years
        ("on 6 June", "on the sixth of June"),
        ("June 6th, 1944", "June sixth nineteen forty four"),
        ("2021-02-03", "February third twenty twenty one"),
        ("11/9/1989", "November ninth nineteen eighty nine"),
        ("the 1920s", "the nineteen twenties"),
        ("the '70s", "the seventies"),
        ("490 BC", "four hundred ninety B C"),
        ("1776 people", "one thousand seven hundred seventy six people"),
        ("1642-51", "sixteen forty two to fifty one"),
        ("2 Dec. 1805", "the second of December eighteen oh five"),
        # times
        ("4:20 pm", "four twenty P M"),
        ("6:00", "six o'clock"),
        ("9:07 a.m.", "nine oh seven A M"),
        ("8-10pm", "eight to ten P M"),
        # money and percent
        ("$2.50", "two dollars and fifty cents"),
        ("$1", "one dollar"),
        ("$7.1 billion", "seven point one billion dollars"),
        ("£30", "thirty pounds"),
        ("€1", "one euro"),
        ("¥900", "nine hundred yen"),
        ("a $50 bill", "a fifty dollar bill"),
        ("-4%", "minus four percent"),
        ("3-5%", "three to five percent"),
        # measures
        ("8 km", "eight kilometers"),
        ("1 kg", "one kilogram"),
        ("a 9 mm pen", "a nine millimeter pen"),
        ("-12°C", "minus twelve degrees Celsius"),
        ("70 mph", "seventy miles per hour"),
        ("6'1\" tall", "six foot one tall"),
        ("3 m/s", "three meters per second"),
        ("10 m²", "ten square meters"),
        ("3/4 lb", "three quarters pound"),
        ("5 in the box", "five in the box"),
        ("4x6", "four by six"),
        # fractions, ordinals, ranges, scores
        ("1/3", "one third"),
        ("2 1/4", "two and a quarter"),
        ("a ⅝ share", "a five eighths share"),
        ("the 23rd", "the twenty third"),
        ("12-15", "twelve to fifteen"),
        ("7–9 days", "seven to nine days"),
        ("Rooms B–D", "Rooms B to D"),
        ("Mon-Wed", "Monday to Wednesday"),
        # names of numbers
        ("(303) 555-0142", "three zero three five five five zero one four two"),
        ("1-800-555-0142", "one eight hundred five five five zero one four two"),
        ("Python 3.12", "Python three point twelve"),
        ("v2.1", "version two point one"),
        ("2.71", "two point seven one"),
        ("Room 204", "Room two oh four"),
        ("#4", "number four"),
        ("two 6s", "two sixes"),
        ("B-29", "B twenty nine"),
        ("MP4s", "M P fours"),
        ("COVID-19", "covid nineteen"),
        # abbreviations, capitals, numerals
        ("Dr. Ross on Oak Dr.", "doctor Ross on Oak drive"),
        ("St. Paul's on Bay St.", "saint Paul's on Bay street"),
        ("No. 9. No. I won't.", "number nine No I won't"),
        ("cats, dogs, etc.", "cats dogs et cetera"),
        ("e.g. this", "for example this"),
        ("the FBI and NASA", "the F B I and NASA"),
        ("two CDs", "two C D's"),
        ("the U.S. team", "the U S team"),
        ("AT&T", "A T and T"),
        ("World War II", "World War two"),
        ("Henry V fell", "Henry the fifth fell"),
        ("Chapter XIX", "Chapter nineteen"),
        ("Mix I think", "Mix I think"),
        ("Grade C", "Grade C"),
        # web and signs
        ("x_y@mail.example.org", "x underscore y at mail dot example dot org"),
        ("see www.example.com.", "see W W W dot example dot com"),
        ("@river", "at river"),
        ("2 + 3 = 5", "two plus three equals five"),
        ("9 - 4 = 5", "nine minus four equals five"),
        ("salt & pepper", "salt and pepper"),
        ("x² < 9", "x squared less than nine"),
        ("12 May 1820 – 13 August 1910", "the twelfth of May eighteen twenty to the thirteenth of August nineteen ten"),
        ("June 2010–present", "June twenty ten to present"),
        ("3–5 May", "the third to the fifth of May"),
        ("on 4/7 they", "on April seventh they"),
        ("1987's album", "nineteen eighty seven's album"),
        ("d. 1616", "died sixteen sixteen"),
        # numbers whose groups are separated
        ("to 4,321.56, or", "to four thousand three hundred twenty one point five six or"),
        ("3 000 000", "three million"),
        ("2.500.000 people", "two million five hundred thousand people"),
        ("₹2,00,000", "two hundred thousand rupees"),
        # money
        ("7€", "seven euros"),
        ("$10-20k", "ten to twenty thousand dollars"),
        ("three $10s", "three tens"),
        ("the $9,000 prize", "the nine thousand dollar prize"),
        ("$2/gal", "two dollars per gallon"),
        # measures
        ("12 million km²", "twelve million square kilometers"),
        ("the 7 km walk", "the seven kilometer walk"),
        ("the 7 km between them", "the seven kilometers between them"),
        ("4 g/cm³", "four grams per cubic centimeter"),
        ("2 m/s²", "two meters per second squared"),
        ("80 beats/min.", "eighty beats per minute"),
        ("1h 20m", "one hour twenty minutes"),
        ('7.5" x 9" board', "seven point five inches by nine inches board"),
        ("3 m × 4 m", "three meters by four meters"),
        ('a "Type 12" tag', "a Type twelve tag"),
        ("6+1⁄2 in", "six and a half inches"),
        # science
        ("7.5e-4", "seven point five times ten to the minus fourth"),
        ("2 × 10^8", "two times ten to the eighth"),
        ("10⁻³", "ten to the minus third"),
        ("x⁴", "x to the fourth"),
        ("H₂SO₄", "H two S O four"),
        ("12°30′S", "twelve degrees thirty minutes south"),
        ("μ and ΔT", "mu and delta T"),
        # addresses
        ("350 Oak Ave NW", "three fifty Oak avenue northwest"),
        ("9 S. 3rd St.", "nine south third street"),
        ("Mesa, AZ 85201.", "Mesa Arizona eight five two zero one"),
        ("Well, OK.", "Well O K"),
        ("Ann Lee, MD, said", "Ann Lee M D said"),
        ("a Model 3 S Type", "a Model three S Type"),
        # codes
        ("978-0-13-110362-7", "nine seven eight zero one three one one zero three six two seven"),
        ("a 4-4-2 formation", "a four four two formation"),
        ("1-888-CALLERS", "one eight eight eight callers"),
        ("10.0.0.1:80", "one zero dot zero dot zero dot one colon eight zero"),
        ("Boeing 777-300", "Boeing seven seventy seven three hundred"),
        ("a V6.", "a V six"),
        ("Psalm 23:1-4", "Psalm twenty three one to four"),
        ("Table 3-1", "Table three one"),
        ("6/8 time", "six eight time"),
        # titles and numerals
        ("Prof. Dr. Weber", "professor doctor Weber"),
        ("Smith Jr.'s car", "Smith junior's car"),
        ("II, III and IV", "two three and four"),
        ("the XIV games", "the fourteenth games"),
        ("page iv", "page four"),
        ("give it to vi", "give it to vi"),
        ("JPEGs", "jay peg's"),
        # files and marks
        ("main.py and .txt", "main dot P Y and dot T X T"),
        ("<b>bold</b>", "bold"),
        ("a fact.[7] Next", "a fact Next"),
        ("x[7]", "x seven"),
        ("## Title", "Title"),
        ("~~old~~", "old"),
        # nothing to read
        ("", ""),
        ("...!?", ""),
        ("hello 🙂", "hello"),
    ],
)
def test_readings(text, words):
    assert say(text) == words


def test_a_headline_in_capitals_is_words():
    assert say("THE DOG ATE IT ALL") == "THE DOG ATE IT ALL"
    assert say("The IT team") == "The I T team"


def test_letters_that_a_dictionary_has_as_a_word():
    assert is_spelled("fbi", cmu_dictionary().lookup("fbi")[0])
    assert not is_spelled("nasa", cmu_dictionary().lookup("nasa")[0])
    assert len(LETTERS) == 26


def seconds(text):
    started = time.process_time()
    for _ in normalize(text):
        pass
    return time.process_time() - started


@pytest.mark.parametrize(
    "unit",
    [
        "1,",
        "1-",
        "a.",
        "1/",
        "'",
        "A&",
        "a'",
        "1:",
        "e\u0301",
        "1",
        "$",
        "@a",
        ". ",
        "x1",
        "[1]",
        "<a ",
        "1.234.",
        "1×",
        "¹",
        "₂",
        "1 000 ",
        "1-22-",
        "A, ",
    ],
)
def test_time_is_linear(unit):
    """Eight times the text takes at most twenty times the time, in the best of three tries."""
    ratios = [seconds(unit * 4000) / max(seconds(unit * 500), 1e-4) for _ in range(3)]
    assert min(ratios) < 20
