//! The ways of cutting a text into words before their letters are joined, by the names that GGUF files have for them.
//!
//! Each is that of the `tokenizer.json` which the files were converted from.

/// How one is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pre {
    /// Patterns, one after the other: each cuts what those before have left whole.
    pub(crate) splits: &'static [&'static str],
    /// Whether a word that is a token is taken as it is, whatever its merges say.
    pub(crate) whole_words: bool,
    /// Whether letters and marks are composed first (NFC). llama.cpp leaves that out.
    pub(crate) composes: bool,
    /// Whether a text begins with the token of its beginning where the file says nothing of it.
    pub(crate) adds_bos: bool,
}

/// The names that are known, in the words of an error.
pub(crate) const KNOWN: &str = "`gpt-2`, `llama-bpe`, `qwen2`, `qwen35`, `gpt-4o`, `tekken`, `smollm`, `starcoder`, `refact`, \
                                `command-r`, `dbrx`, `smaug-bpe`, `glm4`, `chatglm-bpe`, `minicpm5`, `seed-coder`, \
                                `deepseek-llm`, `deepseek-coder`, `deepseek-v3` and others that are one of these; \
                                a tokenizer.json beside the file is taken before it";

/// The one of this name.
pub(crate) fn pre(name: &str) -> Option<Pre> {
    let cut = |splits| Pre { splits, whole_words: false, composes: false, adds_bos: false };
    Some(match name {
        "mpt" | "olmo" => Pre { composes: true, ..cut(&[GPT2]) },
        "gpt-2" | "phi-2" | "jais" | "trillion" | "granite-docling" | "exaone4" | "gigachat" | "a.x-4.0" | "mellum" => {
            cut(&[GPT2])
        }
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
            cut(&[DIGIT, GPT2])
        }
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2" => {
            Pre { whole_words: true, adds_bos: true, ..cut(&[LLAMA3]) }
        }
        "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => cut(&[LLAMA3]),
        "minicpm5" => Pre { whole_words: true, ..cut(&[THREE_DIGITS, MINICPM5]) },
        "qwen2" => Pre { composes: true, ..cut(&[QWEN2]) },
        "deepseek-r1-qwen" | "megrez" | "stablelm2" | "hunyuan" | "solar-open" | "grok-2" | "kormo" | "f2llmv2" => {
            cut(&[QWEN2])
        }
        "qwen35" => Pre { composes: true, ..cut(&[QWEN35]) },
        "seed-coder" => cut(&[SEED_CODER]),
        "gpt-4o" | "llama4" | "kanana2" | "minimax-m2" => cut(&[GPT4O]),
        "tekken" => Pre { whole_words: true, adds_bos: true, ..cut(&[TEKKEN]) },
        "deepseek-llm" => cut(&[LINE_END, CASED_WORD, MARKS, TRAILING_SPACE, EAST_ASIAN, r"\p{N}+"]),
        "deepseek-coder" => cut(&[LINE_END, r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, DIGIT]),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => cut(&[THREE_DIGITS, HAN_OR_KANA, DEEPSEEK3]),
        _ => return None,
    })
}

const DIGIT: &str = r"\p{N}";
const THREE_DIGITS: &str = r"\p{N}{1,3}";
const LINE_END: &str = r"[\r\n]";
const TRAILING_SPACE: &str = r"\s+$";
const HAN_OR_KANA: &str = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";
const EAST_ASIAN: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
const MARKS: &str = r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const MINICPM5: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// Letters that have a case, of the scripts that the tokenizer's makers listed.
const CASED_WORD: &str = "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώ\
     ᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏\
     𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_error_lists_is_known() {
        let names: Vec<&str> = KNOWN.split('`').skip(1).step_by(2).collect();
        assert!(names.len() > 15, "{names:?}");
        assert!(names.iter().all(|name| pre(name).is_some()), "{names:?}");
    }
}
