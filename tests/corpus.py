"""One multilingual corpus for every test of a tokenizer: text, code, digits, emoji and what lies between them.

Each text is a place where tokenizers differ: scripts with combining marks, digits in runs and beside letters of other
scripts, contractions in both cases, line ends, spaces that are none, characters of several code points.
"""

from __future__ import annotations

SCRIPTS = (
    "The rain had stopped, and the river was higher than anybody remembered; the bridge still held.",
    "Große Straßen führen über die Brücke, und der Fluß fließt weiter – „ganz ruhig“.",
    "Où est passé l'été ? Ça, c'est une bien longue histoire, dit-elle à côté de l'œuvre.",
    "Река поднялась на 12 см за 3 дня, а мост 1954 года всё ещё стоит.",
    "Міст їхній, а річка — нічия; Ђорђе је стигао у 7 сати.",
    "Το ποτάμι ανέβηκε, μα η γέφυρα άντεξε· ποιος θα το πίστευε;",
    "Գետը բարձրացավ, բայց կամուրջը կանգնած է։ მდინარე ადიდდა, ხიდი დგას.",
    "ارتفع النهرُ ١٢ سنتيمترًا في ٣ أيّام، لكنّ الجسر ما زال قائمًا؟",
    "رودخانه بالا آمد و پل نمی‌لرزید؛ ۱۴۰۳ سال خوبی بود.",
    "הנהר עלה, אבל הגשר עומד; שָׁלוֹם לְכוּלָּם, אמר דני בשעה 8:30.",
    "नदी का पानी बढ़ गया, फिर भी पुल खड़ा है। क्या किसी ने १२३ लोगों को देखा?",
    "নদীর জল বেড়েছে, তবু সেতুটি দাঁড়িয়ে আছে। ৪৫৬ জন মানুষ দেখেছে।",
    "ஆறு உயர்ந்தது, ஆனால் பாலம் நிற்கிறது. నది పెరిగింది, వంతెన నిలిచింది.",
    "น้ำในแม่น้ำสูงขึ้นแต่สะพานยังอยู่ ๑๒๓ คนยืนดูอยู่ที่นั่น",
    "ទឹកទន្លេឡើងខ្ពស់ ប៉ុន្តែស្ពាននៅដដែល။ မြစ်ရေတက်သော်လည်း တံတားရှိသေးသည်။",
    "河水涨了十二厘米，但桥还在。谁会想到呢？“真的”——他说，《桥》第3章。",
    "川の水かさが増えたが、橋はまだ立っている。ｶﾀｶﾅと全角１２３ＡＢＣも、ね〜。",
    "강물이 불었지만 다리는 아직 서 있다. 3월 14일에 다시 온다고 했다.",
    "Nước sông dâng cao nhưng cây cầu vẫn đứng vững; ai mà tin được điều đó, phải không?",
    "Nehir yükseldi ama köprü duruyor: İstanbul, ılık bir gün. Rzeka wezbrała, a most źdźbło zniósł.",
    "የወንዙ ውሃ ጨመረ፣ ድልድዩ ግን ቆሟል። Ua piʻi ka wai, akā kū ka uapo.",
)
CODE = (
    "def area(width: float, height: float) -> float:\n"
    '    """Width times height."""\n    if width < 0:\n        raise ValueError(f"negative: {width!r}")\n\n'
    "    return width * height  # m²\n\n\nassert area(2.5, 4) == 10.0\n",
    "#include <stdio.h>\n\nint main(void) {\n\tfor (int i = 0; i < 1024; ++i) {\n"
    '\t\tprintf("%d\\t0x%04x\\n", i, i & 0xff);\n\t}\n\treturn 0;\n}\n',
    '{\n  "name": "bridge",\n  "sizes": [1, 22, 333, 4444],\n  "on": true,\n'
    '  "path": "C:\\\\temp\\\\a.txt",\n  "u": "\\u00e9"\n}\n',
    "<p class='a'>x &lt; y &amp;&amp; y != z</p><!-- TODO(me): 100% -->",
    "SELECT COUNT(*) FROM t WHERE a<>'O''Brien' AND b>=1e-9;\tgit rebase -i HEAD~3 && make -j8 2>&1 | tee out.log",
    "XMLHttpRequest2URLParserFactory getHTTPResponse snake_case_name kebab-case-name __init__ $HOME/.config //a/b//c/",
)
DIGITS = (
    "1 12 123 1234 12345 123456 1234567 12345678 123456789 1234567890 12345678901 123456789012",
    "1,234,567.89 -0.5e-10 3.14159 192.168.0.1 2026-11-29T08:05:03Z +49 (0)30 1234-5678 50% $19.99 №7",
    "x1y22z333 abc123def 7th 3D 1.2.3.4.5 0b1010 0xDEADBEEF 10² ½ ⅓ x³ Ⅷ ①② ٣٤٥ ४५६ 百二十三 1２3",
)
EMOJI = (
    "👍 👍🏽 👍🏿👍🏻 👩‍👩‍👧‍👦 👩🏾‍🚀 ❤️ ❤ 🏳️‍🌈 🇫🇷🇩🇪🇯🇵 🇫 1️⃣ #️⃣ 🤷🏼‍♀️🤷 ©️ ™ 😀😀😀 (╯°□°)╯︵ ┻━┻",
    "ok😀ok 😀, good🎉!!! day ✅done ☕️x2 a🫠b",
)
ENGLISH = (
    "I'm sure they've said it's John's, we'll see; I'd go if you're there, aren't you? 'tis 'twas o'clock",
    "I'M SURE THEY'VE SAID IT'S JOHN'S, WE'LL SEE; I'D GO IF YOU'RE THERE. He'S She'Ll 'Re",
    "it’s ‘quoted’ and “double”, l’été — don´t rock`n`roll 'Sword' ''''s \"\"\"x\"\"\" ...... !!!??? ------ =====",
)
SPACES = (
    "line\r\nline\r\n\r\nline\rline\n\n\nline  \r\n  indented\r\n\t\ttabs",
    "trailing spaces   \nand a tab\t\nend   ",
    "   leading",
    " one\u00a0no-break\u00a0\u00a0space\u202fthin\u2009thin\u3000wide\u2003em"
    "\u2028line\u2029paragraph\u0085next\u000bvt\u000cff",
    "zero\u200bwidth\u200djoin\u200cnon\ufeffmark \u200e\u200f soft\u00adhyphen",
    "a  b   c    d     e" + " " * 20 + "f" + "\n" * 9 + "g" + " \n" * 4 + "\t" * 7 + "h",
    "\n",
    " ",
    "    ",
    "\t\n \r\n ",
    " \u00a0\u3000 \n",
)
MARKS = (
    "cafe\u0301 re\u0301sume\u0301 A\u030a \u212b \u2126 n\u0303o i\u0307 \u1e9b\u0323 \u0344 \u1112\u1161\u11ab",
    "\u0301alone x \u0301\u0301 \u20dd1\u20e3 Z\u0351\u0343\u034aalgo o\u0335\u0336 \u0915\u094d\u200d\u0937 \u0e33",
    "ﬁ ﬃ ǅ ß ẞ ſ 'ſ K Å ℌ 𝔘𝕟𝒊 𝟘𝟙 ⅷ Ω ª º",
)
MATHS = (
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β → (α ∨ β), ∫₀¹ √(x²+y²) dx ≈ 0.5 ± 10⁻³ ≠ ∞",
    "a += b; c ^= d | e & ~f << 2; x ** y // z @ w; p->q.r[0]{1}; $\\frac{a}{b}$ \\begin{align}",
)
CONTROL = "bell\u0007nul\u0000esc\u001b[0m del\u007f c1\u0081 \ufffd private\ue000 \U000e0041tag \U0010ffff"

TEXTS = ("", *SCRIPTS, *CODE, *DIGITS, *EMOJI, *ENGLISH, *SPACES, *MARKS, *MATHS, CONTROL)
