"""Define the hand-written English grammar of the default tagger: closed-class words and transition weights.

The first table lists the Penn tags of words of closed classes. The second one has a weight for each Penn tag after
each kind of word. The weights were set by hand (``+3``: nearly always, ``-5``: hardly ever), not counted in a corpus.

A *kind* is a Penn tag, or a finer class where the tag does not determine the next word well enough: ``BE``,
``HAVE`` and ``DO`` for the auxiliaries, ``A`` for singular determiners, ``THIS`` and ``THESE`` for
demonstratives, ``WE``, ``HE``, ``IT``, ``YOU`` and ``ME`` for pronouns by agreement and case,
``IF`` for words that open a clause, ``^`` for the beginning, ``,`` and ``;`` for the punctuation
inside a sentence, ``"`` for quotation marks.

Does not cover: the tags of open-class words (`words`) and the search for the best sequence
(`tagger`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple


class Reading(NamedTuple):
    """One possible analysis of a word.

    Attributes
    ----------
    tag : str
        Penn tag.
    kind : str
        Row of `FOLLOWS` that applies to the next word.
    prior : float
        Weight of this reading without context.
    """

    tag: str
    kind: str
    prior: float


def read_words(text: str) -> frozenset[str]:
    """Return the words of a text.

    Examples
    --------
    >>> sorted(read_words("to be"))
    ['be', 'to']
    """
    return frozenset(text.split())


_CLOSED = """
the: DT
a an: DT/A
every each: DT/A
another: DT/A
no: DT UH-3
any some: DT
all: DT PDT RB-3
half: NN PDT-1 JJ-1 RB-1
both: DT CC PDT-1
either neither: DT/A CC RB-1
this: DT/THIS
that: IN/IF DT/THIS-0.5 WDT-0.5 RB-6
these those: DT/THESE
such: JJ PDT
quite rather: RB PDT-1.5
i we they: PRP/WE
he she: PRP/HE
it: PRP/IT
you ya u: PRP/YOU
me him them us 'em: PRP/ME
her: PRP$ PRP/ME
his: PRP$ PRP/ME-4
my your our their its thy ur: PRP$
mine yours hers ours theirs thee: PRP/ME
thou: PRP/YOU
myself yourself himself herself itself ourselves yourselves themselves oneself: PRP/ME
one: CD NN-2 PRP/HE-1.5
there: EX RB
who whom: WP
whose: WP$/PRP$
which: WDT
what: WP WDT-0.5
whatever whichever: WDT WP
whoever whomever: WP
when where why how whenever wherever: WRB
can could may might must shall should will would 'll ca wo sha ought cannot: MD
'd: MD VBD/HAVE
be: VB/BE
am: VBP/BE NN-3
m r: VBP/BE NN-1.5
'm are 're: VBP/BE
is: VBZ/BE
was were: VBD/BE
been: VBN/BE
being: VBG/BE
have: VBP/HAVE VB/HAVE
've ve: VBP/HAVE VB/HAVE-2
has: VBZ/HAVE
had: VBD/HAVE VBN-1
having: VBG/HAVE
do: VBP/DO VB/DO
does: VBZ/DO
did: VBD/DO
not n't nt: RB
never always often sometimes usually already also too very just even still ever soon then: RB
again perhaps maybe almost rather thus therefore hence however instead indeed moreover: RB
now here yet away together ago else apart somewhere anywhere everywhere nowhere: RB
please pls plz: UH/PLEASE
yes yeah hello hi wow oh ah alas hey ha haha lol okay: UH
well: RB UH-1 JJ-2
ok: JJ UH
to: TO IN
and or &: CC
but: CC IN-5 RB-5
nor: CC
plus: CC IN-0.5 NN-2
if whether because b/c unless although whereas lest: IN/IF
though: IN/IF RB-1
while: IN/IF NN-1
since: IN/IF
than: IN
until till once: IN/IF
once: RB IN/IF
of at from with into onto upon among amongst during despite towards toward via per without: IN
against between beneath beside besides behind below underneath within throughout amid unlike w/ thru: IN
for: IN
by: IN RP-5
in: IN RP-2 RB-4
on: IN RP-1.5 RB-3
about: IN RB-1
over: IN RP-1 RB-0.5
through across: IN RP-1.5
around along: IN RP-0.5 RB-1
under above near inside outside: IN RB-2
before after: IN/IF RB-3
up out: RP IN-0.5 RB-0.5
down off: RP IN-0.5 RB-0.5
back: RB NN-1 RP-1 VB-3 JJ-2
like: IN VB-0.5 VBP-0.5 UH-4
as: IN/IF RB-0.5
so: RB IN/IF-2
more: JJR RBR
most: RBS JJS
less: JJR RBR
least: JJS RBS
much: JJ RB
many several few: JJ
enough: RB JJ
only: RB JJ-1
first: JJ RB-0.5
last next: JJ RB-2
same other: JJ
own: JJ VBP-3 VB-3
own's: JJ
better: JJR RBR MD-4
best: JJS RBS-1
long: JJ RB
early late: JJ RB-0.5
far: RB JJ-0.5
right: JJ RB NN-0.5 UH-1
today tomorrow yesterday tonight: NN
something anything nothing everything someone anyone everyone somebody anybody nobody everybody: NN
none thanks pm a.m. p.m. a.m p.m: NN
fun: NN JJ
close: JJ RB-0.5 VB-0.5 VBP-0.5 NN-2
thank: VBP VB-3
hope: VBP VB-3 NN-2
following: VBG JJ-1 NN-2
later sooner: RBR JJR-0.5
btw asap fyi: RB
home: NN RB-0.5
gon: VBG
wan: VB VBP
got: VBD VBN
gotten: VBN
let: VB/LET VBD/LET-1.5 VBN/LET-2
na ta: TO
etc etc.: FW
e.g. i.e. e.g i.e: FW
o'clock: RB
two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen: CD
seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred: CD
thousand million billion trillion dozen: CD
"""

_FOLLOWS = """
^: RB 1 NNS 1 NNP 1 PRP 1 DT 1 UH 1 EX 1 IN .5 VB .5 VBP -2 VBZ -2 VBD -3 VBN -1 POS -9 RP -4
DT: NN 3 NNS 2 NNP 1.5 NNPS 1.5 JJ 2 JJR 1 JJS 2 RBS 1 RB -1 CD 1 VBN -.5 VBG -.5 VB -7 VBP -7 VBZ -5
DT: VBD -6 MD -5 PRP -4 DT -4 IN -3 TO -4 CC -2 RP -5 UH -3 POS -9 WP -3 . -2 PRP$ -4 EX -4
A: NN 3.5 NNS -1 NNP 1 JJ 2 JJR 1 JJS 1 RB -.5 CD .5 VBN -.5 VBG -.5 VB -7 VBP -7 VBZ -6 VBD -6 MD -5
A: PRP -5 DT -4 IN -3 TO -4 CC -3 RP -5 UH -4 POS -9 WP -3 . -2 PRP$ -5 EX -4
THIS: NN 2.5 NNS -2 JJ 1 VBZ 1.5 VBD .5 MD 1 VB -3 VBP -2 IN -.5 PRP 0 DT -1 RB .3 . .5 VBN -1 POS -3
THESE: NNS 3 NN -1 JJ 1.5 CD 1 VBP 1 VBD .5 MD .5 VBZ -3 VB -4 IN .3 VBN .3 WP 1 POS -9
PDT: DT 3 PRP$ 3 JJ -2 NN -3 NNS -3 . -3 IN -3 VB -3 VBP -3 VBZ -3 VBD -3 PRP -2 RB -2
PRP$: NN 3 NNS 3 NNP 1 JJ 2 JJS 1.5 CD .5 VBN -.5 VBG -.5 RB -1.5 VB -6 VBP -6 VBZ -5 VBD -6 MD -5 PRP -5
PRP$: DT -6 IN -5 TO -5 CC -3 RP -6 POS -9 . -3 PRP$ -6 WP -5 UH -3 EX -6
POS: NN 3 NNS 3 NNP 1.5 JJ 2 JJS 1.5 CD .5 VBN -1 VBG -1 RB -2 VB -6 VBP -6 VBZ -5 VBD -4 MD -4 PRP -5
POS: DT -6 IN -1.5 TO -2 CC -1 RP -6 POS -9 . -.5 PRP$ -6 WP -5 UH -3 EX -6
JJ: NN 3 NNS 3 NNP 1 JJ 1 VB -4 VBP -4 VBZ -3 VBD -3 VBN -1 VBG -.5 IN .5 TO 1 CC .5 . .5 DT -2 PRP -1.5
JJ: RB -.5 MD -2 POS -4 RP -4 PRP$ -2
JJR: NN 2.5 NNS 2.5 IN 1.5 JJ -.5 VB -4 VBP -4 VBZ -2 VBD -3 TO .5 . .5 CC .5 DT -1.5 PRP -1.5 POS -9 RBR -1
JJS: NN 3 NNS 3 JJ 1.5 IN .7 VB -4 VBP -4 VBZ -2 VBD -3 DT -2 PRP -1 POS -9 CD .5
RBR: JJ 3 RB 2 VBN 1 IN .8 . .5 NN -1.5 NNS -1.5 VB -1 DT -.5
RBS: JJ 3 RB 2 VBN .5 IN -1 . -.5 NN -2 NNS -1.5 DT -2
CD: NNS 3 NN 1.5 JJ 1 CD 1 VB -3 VBP -2 VBZ -2 VBD -1 IN .5 . .7 DT -2 PRP -2 NNP .3 POS -2 TO 0 RP -4
NN: NN 1 NNS 1 IN 1 . 1 CC .5 VBZ 1.5 VBD 1 MD 1 VBP -2.5 VB -4 VBN .5 VBG .5 JJ -1.5 RB .3 TO .5 DT -2
NN: PRP -1 PRP$ -1.5 POS 1 WDT 1 WP .5 RP -2 CD -.5 NNP -1 EX -2 JJR -1 RBR -.5
NNS: NN -1 NNS -1.5 IN 1 . 1 CC .5 VBP 1.5 VBD 1 VBZ -3 MD 1 VB -3.5 VBN .7 VBG .7 JJ -1.5 RB .3 TO .5
NNS: DT -1.5 PRP -.5 PRP$ -1.5 POS .7 WDT 1 WP .7 RP -2 CD -1 NNP -1 EX -2
NNP: NNP 2 NNPS 1 NN .5 NNS .3 VBZ 1.5 VBD 1.5 MD 1 VBP -2 VB -3 JJ -1 POS 1.5 CD .5 . 1 IN .5 CC .5 DT -2
NNP: PRP -1.5 RP -3 PRP$ -2 VBG -.5 VBN -.5 RB -.3 EX -2
NNPS: NNP 1 NN -.5 VBP 1.5 VBD 1.5 VBZ -1 MD 1 VB -3 JJ -1 POS .7 . 1 IN 1 CC .5 DT -2 PRP -1.5 RP -3
WE: VBP 3 VBD 2.5 VBZ -4 MD 2 RB 1 VBN -2 VB -2 VBG -2 NN -4 NNS -3 JJ -3 IN -2 DT -2 POS -9 . -.5 NNP -3
WE: RP -4
HE: VBZ 3 VBD 2.5 VBP -3 MD 2 RB 1 VBN -2 VB -3 VBG -2 NN -4 NNS -4 JJ -3 IN -2 DT -2 POS -9 . -.5 NNP -3
HE: RP -4
IT: VBZ 2.5 VBD 2 VBP -3 MD 2 RB .7 VBN -.7 VB -1 VBG -.5 NN -3 NNS -4 JJ 0 IN .7 TO .7 DT -.5 POS -9 . 1
YOU: VBP 3 VBD 1.5 VBZ -4 MD 2 RB .7 VBN -2 VB -.5 VBG -.5 NN -3 NNS -3 JJ -2 IN .3 DT -.5 POS -9 . .5
ME: VB 1 IN 1 TO 1.5 . 1.5 DT .5 VBG .5 VBN 0 VBD -1 VBZ -3 VBP -3 NN -2.5 NNS -2.5 JJ -1.5 RB .5 CC .5
ME: POS -9 RP 1 MD -2 NNP -1.5
EX: VBZ 3 VBP 3 VBD 3 MD 3 RB .3 VB -2 IN -3 . -3 NN -5 NNS -5 JJ -5 DT -4 PRP -4 CC -4 TO -4 CD -4 WP -4
EX: NNP -4 VBG -2 VBN -2
MD: VB 5 RB 1 NN -4 NNS -4 VBP -7 VBZ -6 VBD -6 VBN -5 VBG -4 JJ -3 PRP .5 IN -3 DT -2 . -.5 RP -4 NNP -2
TO: VB 5 RB -.5 NN -4 NNS -5 NNP -4 VBP -9 VBZ -9 VBD -9 VBN -5 VBG -5 JJ -5 DT -7 PRP -7 PRP$ -7 CD -5 . -1
TO: IN -4 WP -4 WDT -4 WRB -3 JJR -4 EX -5 CC -2
IN: NN 1.5 NNS 1.5 NNP 1.5 JJ 1 JJS .5 DT 2 PRP 1 PRP$ 1 CD .7 VBG 1.5 VB -5 VBP -5 VBZ -4 VBD -4 VBN -2 MD -4
IN: IN -1 RB -.7 WP .7 WDT .7 WRB .3 . -1.5 TO -3 CC -2 RP -4 POS -9 EX -2 UH -3
IF: PRP 2 EX 2 DT 1 NN .5 NNS .7 NNP 1 JJ .3 PRP$ .7 VB -4 VBZ -2 VBP -2.5 VBD -2 VBN -.5 VBG 1 MD -2 RB .5
IF: IN -.5 . -1 TO -.5 CC -3 RP -4 POS -9 CD .3 WP -.5
CC: RB .5 POS -9 RP -3 CC -2 . -1 PRP .5 DT .5 NNP .3 NN .3 NNS .3 JJ .3 MD -.5
VB: DT 1.5 PRP 1 PRP$ 1.5 NN .5 NNS 1 NNP .5 JJ .5 IN .8 TO 1 RP 1.5 RB .5 VB -3.5 VBP -4 VBZ -4 VBD -4
VB: VBN -2 VBG 0 MD -4 . .3 CD .5 WP .7 WRB .7 EX .3 POS -9 CC 0 JJR .5
LET: PRP 7 POS -9 VBZ -6 DT 1.5 PRP$ 1.5 NN .5 NNS 1 NNP .5 RP 1.5 IN .5 RB .5 VB -1 VBP -4 VBD -4 MD -4 . .3
VBN: IN 1.5 . .5 TO 1 RB .5 DT .3 PRP -.3 VB -4 VBP -3 VBZ -3 VBD -3 JJ 0 RP 1 NN -.3 NNS 0 POS -9 VBN -2
VBN: MD -3 VBG -.5
BE: VBN 2 VBG 3 JJ 2 DT 1.5 RB 1.5 IN .8 NN -1 NNS -.7 NNP -.5 VB -5 VBP -5 VBZ -5 VBD -5 PRP .3 PRP$ .5
BE: CD .3 TO .3 MD -5 POS -9 RP -.5 JJR 1 JJS 0 WP .3 WRB .3 . -.3 EX .5 UH -2
HAVE: VBN 3.5 DT 1.5 TO 1.5 RB .8 VBD -5 VB -4 VBP -4 VBZ -5 NN .3 NNS .7 JJ .5 PRP$ .7 VBG -1.5 CD .5 PRP .3
HAVE: POS -9 MD -5 IN -.7 RP -2 . -.3
DO: VB 4 RB .5 PRP 1.5 DT .8 NN -1 NNS -.5 VBP -4 VBZ -4 VBD -5 VBN -3 VBG -2 JJ -1 MD -5 POS -9 RP -1
RB: JJ 1.2 RB .5 VB .5 VBP .4 VBN .8 VBD .5 VBZ .5 VBG .5 NN -1.7 NNS -1.5 NNP -1.5 IN .4 . .6 DT .3 POS -9
RB: RP -1.5 CD .3 JJR .7 RBR .7
WDT: VBZ 2 VBP 2 VBD 2 MD 2 PRP 1 NN -1 NNS 0 VB -3 VBN -2 RB .5 DT .3 IN -1 . -1.5 POS -9 JJ -.7 EX 1
WP: VBZ 2 VBP 1.5 VBD 2 MD 2 PRP 1.5 NN -1.5 NNS -1 VB -2.5 VBN -2 RB .5 DT .7 IN -.7 . -.5 POS -9 TO .7 JJ -1
WRB: PRP 1.5 DT 1 TO 1 JJ 1 RB .7 MD .7 VBZ .5 VBP .5 VBD .5 VBG .5 VB -2 NN -.3 NNS .3 NNP .7 POS -9 EX .7
RP: DT 1.2 PRP .7 PRP$ 1.2 IN 1 . 1 VB -3 VBZ -3.5 VBD -2.5 VBP -3 TO .7 RB .3 JJ -.7 VBN -2 CC .5 NN -.3
,: VBG .5 RB .5 PRP .5 CC .7 DT .3 IN .3 WDT .5 NNP .3 VB -1 VBP -1 VBZ -.7 VBD -.3 VBN .2 POS -9 RP -3 UH .3
;: RB .5 PRP .5 DT .5 NNP .5 VB 0 VBP -1.5 VBZ -1.5 VBD -1.5 POS -9 RP -3 NN .3 NNS .3 JJ .3
": NNP .3 PRP .3 VBP -1 VBZ -.5 POS -9 RP -3
PLEASE: VB 3 VBP -2 NN -1.5 VBZ -3 VBD -3 . 1 RB .5 DT -1
UH: . 1 UH .5 PRP .3 VB .5 VBP -1 VBZ -1 VBD -1 POS -9
$: CD 4 NN -2
-: NN 1 NNS .7 JJ .7 VBN .7 VBG .5 CD .5 VB -1.5 VBP -2 VBZ -1.5 VBD -1.5 IN .5 RP .5 POS -9
"""

_LIKE = {"VBP": "VB", "VBZ": "VB", "VBD": "VB", "VBG": "VB", "WP$": "PRP$", "FW": "NN"}
_UPOS = """
NOUN: NN NNS FW
PROPN: NNP NNPS ADD
VERB: VB VBP VBZ VBD VBN VBG
AUX: MD
ADJ: JJ JJR JJS
ADV: RB RBR RBS WRB
ADP: IN RP
PART: TO POS
PRON: PRP PRP$ WP WP$ EX WDT
DET: DT PDT
CCONJ: CC
NUM: CD LS
INTJ: UH
SYM: SYM $
PUNCT: . , : `` '' -LRB- -RRB- HYPH NFP
X: XX AFX GW
SPACE: _SP
"""


def _read_closed() -> dict[str, tuple[Reading, ...]]:
    """Parse the table of closed-class words; a reading is ``TAG[/KIND][-PENALTY]``."""
    closed: dict[str, tuple[Reading, ...]] = {}
    for line in _CLOSED.strip().splitlines():
        words, _, readings = line.partition(": ")
        parsed = []
        for text in readings.split():
            name, _, penalty = text.partition("-")
            tag, _, kind = name.partition("/")
            parsed.append(Reading(tag, kind or tag, -float(penalty or 0)))
        for word in words.split():
            closed[word] = tuple(parsed)
    return closed


def _read_follows() -> dict[str, dict[str, float]]:
    """Parse the table of weights."""
    rows: dict[str, dict[str, float]] = {}
    for line in _FOLLOWS.strip().splitlines():
        kind, _, cells = line.partition(": ")
        names = cells.split()
        weights = zip(names[::2], map(float, names[1::2]), strict=True)
        rows.setdefault(kind, {}).update(weights)
    rows.update({kind: rows[model] for kind, model in _LIKE.items()})
    return rows


CLOSED = MappingProxyType(_read_closed())
"""Readings of the words of closed classes, lower-cased."""

FOLLOWS = MappingProxyType(_read_follows())
"""Weight of a Penn tag after a kind of word; 0 for a tag that is not listed."""

UPOS = MappingProxyType(
    {
        tag: name
        for name, _, tags in (line.partition(": ") for line in _UPOS.strip().splitlines())
        for tag in tags.split()
    }
)
"""Universal part of speech of each Penn tag, as far as it depends on the tag alone."""
