"""How verdicts are written: the words, marks and numbers that `text_verdicts` looks for, as compiled patterns."""

import re
from collections.abc import Mapping
from typing import Final

THINK_TAG = re.compile(r"[<◁](/?)(?:\w+:)?(?:think|thinking|thought|reasoning)[>▷]", re.IGNORECASE)
CODE = re.compile(
    r"^(`{3,}|~{3,})[ \t]*(?!json|text|txt|markdown|md|plaintext|yaml|yml|xml|output|verdict)\w[^\n]*\n.*?(?:^\1|\Z)",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
MARKS = re.compile(r"[*`]+|~~|__")
PLAIN: Final = str.maketrans(
    {"【": "[", "】": "]", "〚": "[[", "〛": "]]", "⟦": "[[", "⟧": "]]", "≫": ">>", "≪": "<<", "−": "-", "–": "-"}
    | dict.fromkeys(
        "\u200b\u200c\u200d\u200e\u200f\ufeff\u2060\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069", ""
    )
)
ENTITIES: Final = {"&gt;": ">", "&lt;": "<", "&#62;": ">", "&#60;": "<", "&quot;": '"'}

BRACKETED = re.compile(
    r"\[\s*+\[\s*+([^\[\]\n]{0,60}?)\s*+\]\s*\]"
    r"|\\boxed\s*\{\s*+(?:\\text\w*+\s*\{)?\s*+([^{}\n]{0,60}?)\s*+\}"
    r"|(?<![A-Za-z0-9_\[])\[\s*+([ABab]\s*[<>=]{1,3}\s*[ABab])\s*\](?!\])"
)
WORDS: Final = (
    *("rating", "score", "verdict", "grade", "mark", "judg(?:e)?ment", "decision", "winner", "choice", "preference"),
    *("answer", "result", "bewertung", "punktzahl", "urteil", "puntuación", "puntuacion", "calificación", "veredicto"),
    *("punteggio", "verdetto", "verdict", "évaluation", "nota", "оценка", "вердикт", "评分", "得分", "分数", "判定"),
    *("結論", "结论", "最终判决", "最终评分", "評価", "スコア", "点数", "평점", "점수", "판정"),
)
"""What judges call a verdict, in the languages that they are asked in."""
VERDICT_WORD = rf"(?:{'|'.join(WORDS)})"
LIGHT = (
    *(
        "is",
        "was",
        "are",
        "the",
        "a",
        "an",
        "of",
        "for",
        "to",
        "that",
        "this",
        "it",
        "be",
        "as",
        "i",
        "give",
        "would",
        "my",
    ),
    *(
        "assistant",
        "model",
        "response",
        "answer",
        "better",
        "best",
        "equal",
        "tie",
        "significantly",
        "slightly",
        "much",
    ),
    *("clearly", "label", "a", "b", "c", "final", "overall", "ist", "est", "es", "für", "with", "and"),
)
_CHOOSE = (
    r"\bI(?:['’](?:d|ll|m)|\s+(?:would|will|now|therefore|thus|then|finally))?\s+"
    r"(?:choose|pick|prefer|select|rate|give|assign|score|settle\s+on|go(?:ing)?\s+with)\b"
)
INTRODUCED = re.compile(
    rf"(?:{VERDICT_WORD}|\bfinal(?:ly)?\b|\boverall\b|{_CHOOSE})"
    rf"(?:[^\w.!?\n\[\]]|\b(?:{'|'.join((*LIGHT, *WORDS))})\b)*$",
    re.IGNORECASE,
)
NAME = re.compile(r"[A-Za-z0-9_.)]*[A-Za-z0-9)]_*\Z")
NAMED = re.compile(rf"^(?:final\s+|overall\s+)?{VERDICT_WORD}\s*[:=]\s*", re.IGNORECASE)
INDEX = re.compile(r"\d+|[\"'].*[\"']")
NUMBER = r"[-+]?(?:\d+(?:[.,]\d+)?|\.\d+)\.?"
OF = r"(?:\s*(?:/|out\s+of|von|sur|de|su)\s*\d+(?:[.,]\d+)?)?"
UNIT = r"(?:\s*(?:points?|pts?|punkte?n?|puntos?|分|점|点))?"
TIES: Final = (
    *(
        "tie",
        "tied",
        "draw",
        "equal",
        "both equal",
        "even",
        "unentschieden",
        "gleichstand",
        "empate",
        "égalité",
        "egalite",
    ),
    *("pareggio", "ничья", "平局", "引き分け", "무승부", "neither", "both"),
)
SIDE = r"(?:(?:assistant|model|response|answer|option|ai|助手|模型|アシスタント)[\s_-]*)?"
CHOICE = rf"(?:{SIDE}[ABC](?![\w>=<])|[AB]\s*(?:<<?|>>?|==?)\s*[AB]|(?:a\s+)?(?:{'|'.join(TIES)}))"
BETTER = r"(?:\s+(?:is|was|wins?)\s*(?:(?:the\s+)?(?:much\s+|clearly\s+|slightly\s+)?(?:better|best|winner|one))?)?"
ENDS = r"(?=[\s\"'“”’)\]}_]*(?:$|[\n.,;!?。！？]))"
BEGINS = re.compile(
    r"(?:^|[.!?。！？;\n{,])[\s>#\-•\"'“(|{$]*(?:\d+\.\s+)?"
    r"(?:(?:my|the|so|thus|therefore|hence|overall|final|i\s+give\s+a|in\s+conclusion,?|最终|最終|총|最后)\s*)*$",
    re.IGNORECASE,
)
WORD = re.compile(rf"(?:{VERDICT_WORD}|\bfinal)(?!\w)", re.IGNORECASE)
LONGEST_LEAD: Final = 60
COLON = (
    r"(?:\s+(?:score|rating|verdict|grade|answer|label|is)){0,4}"
    r"[\"'\s]{0,20}(?:(?:is|are|was|ist|es|est|è)\b\s*:?|[:=]|-{1,2}>?|→)[\"'“\[(\s$]*"
)
SAID: Final[Mapping[str, re.Pattern[str]]] = {
    kind: re.compile(rf"{COLON}({value}){ENDS}", re.IGNORECASE | re.MULTILINE)
    for kind, value in {
        "score": rf"{NUMBER}{OF}{UNIT}",
        "scores": rf"{NUMBER}\s*[,;]\s*{NUMBER}",
        "choice": rf"{CHOICE}{BETTER}",
    }.items()
}
"""What may follow a word for a verdict."""
SCORE_OF = re.compile(
    rf"(?:score|rating)[\s_-]{{0,8}}(?:of|for)?[\s_-]{{0,8}}{SIDE}([AB])\b[\"'\s]*[:=：][\"'\s\[]*({NUMBER}{OF}{UNIT}){ENDS}",
    re.IGNORECASE | re.MULTILINE,
)
ONE_NUMBER = re.compile(rf"({NUMBER})(?:\s*(?:/|out\s+of|von|sur|de|su)\s*(\d+(?:[.,]\d+)?))?{UNIT}", re.IGNORECASE)
OUT_OF = re.compile(r"\s*(?:/|out\s+of)\s*(\d+(?:[.,]\d+)?)")
TWO_NUMBERS = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*[,;/|]\s*([-+]?\d+(?:\.\d+)?)")
COMPARED = re.compile(r"([AB])(>>|>|=|==|<|<<)([AB])")
SEVERAL = re.compile(r"\d\s*(?:-|to|or|and|~|bis|oder)\s*\d|\b[abc]\s*(?:/|,|or|and|&|oder)\s*[abc]\b", re.IGNORECASE)

IF = re.compile(
    r"[\"'“”’\])]*[ \t]*[,:\-—]?[ \t]*\(?"
    r"(?:if|for a tie|when|otherwise|wenn|falls|sonst|si|se|если|如果|若|もし)(?![A-Za-z])"
)
_TOLD = r"(?:(?:then|please|you|should|must|output|write|say|print|return|choose|answer|with)\b[^\w\[\]\n]*){0,4}$"
CASE = re.compile(
    rf"\b(?:if|when)\s+(?:the\s+|it\s+is\s+|a\s+)*{SIDE}(?:[AB]\b|both\b|neither\b|they\b|tied?\b)"
    rf"(?:[^\[\]\n.!?;,]{{0,60}}\b(?:better|best|wins?|equal(?:ly)?|tied?|good|bad|same))?[^\w\[\]\n]*{_TOLD}"
    rf"|(?:\botherwise|\belse|\bsonst|否则)[^\w\[\]\n]*{_TOLD}"
    r"|\b(?:wenn|falls)\s+(?:assistent|modell|antwort|beide)[^\[\]\n.!?;,]{0,60}(?:,[^\w\n]*(?:schreib\w*|dann)?)?[^\w\n]*$"
    r"|(?:如果|若|もし)[^\[\]\n。，,]{0,40}(?:[，,]\s*(?:请|则)?(?:输出|返回|写)?)?[^\w\n]*$",
    re.IGNORECASE,
)
"""The case that an instruction names before what it is for: `If assistant A is better, output [[A]]`."""
EXAMPLE = re.compile(
    r"(?:for\s+example|e\.g\.|^\s*examples?|example\s+output|such\s+as|(?:must|should)\s+output|zum\s+beispiel|z\.\s?b\.|例如|例えば"
    r"|\b(?:ask|tell|told|instruct|want|order)\w*\s+(?:\w+\s+){0,3}to\s+(?:output|write|say|print|return|give|reply|respond|answer)\b)"
    r"(?:\s+with\b)?"
    rf"(?:[^\w.!?\n\[\]]|\b(?:{'|'.join((*LIGHT, *WORDS))})\b)*$",
    re.IGNORECASE,
)
LISTED = re.compile(r"[ \t>]*(?:\d+[.)]|[-•])[ \t]")
ANY = re.compile(r"\w")
SAME_SENTENCE = re.compile(r"[^\n.!?。]*")
LETTER = re.compile(r"[ABC]|[AB][<>=]{1,3}[AB]", re.IGNORECASE)
NOTHING_BETWEEN = re.compile(
    rf"(?:\W|_|\b(?:or|and|oder|und|ou|et|y|e|vs|versus|the|my|is|also|either|final(?:ly)?|{'|'.join(WORDS)})\b)*",
    re.IGNORECASE,
)
