//! What is a secret, by its name or by its look: it is never shown.

use std::borrow::Cow;

/// What stands in the place of a secret.
pub(crate) const HIDDEN: &str = "<hidden>";

/// Tells whether what is called this is a secret: `HF_TOKEN`, `--api-key`, `vllmApiKey`.
pub(crate) fn is_secret(name: &str) -> bool {
    let parts = parts(name);
    let last = parts.last().map_or("", String::as_str);
    let before = parts.len().checked_sub(2).map_or("", |index| parts[index].as_str());
    match last {
        "password" | "passwd" | "passphrase" | "secret" | "credential" | "credentials" | "apikey" => true,
        // `--pad-token` is a word of a vocabulary, and Python takes `--max-num-batched-token` for the flag with an `s`.
        "token" => {
            !matches!(before, "per" | "pad" | "eos" | "bos" | "unk" | "stop" | "special")
                && !parts.iter().any(|part| matches!(part.as_str(), "max" | "min" | "num"))
        }
        "key" | "keys" => {
            matches!(before, "api" | "access" | "secret" | "private" | "auth" | "encryption" | "account" | "master")
        }
        _ => false,
    }
}

/// The words of a name in small letters: `vllmApiKey` and `VLLM_API_KEY` have the same.
fn parts(name: &str) -> Vec<String> {
    let (mut parts, mut small) = (vec![String::new()], false);
    for character in name.chars().take(200) {
        let ends = !character.is_ascii_alphanumeric();
        if (ends || (small && character.is_ascii_uppercase())) && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(String::new());
        }
        small = character.is_ascii_lowercase();
        if let (false, Some(part)) = (ends, parts.last_mut()) {
            part.push(character.to_ascii_lowercase());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Tells whether some part of a text has the form of a key that somebody hands out.
pub(crate) fn has_key(text: &str) -> bool {
    const FORMS: [&str; 9] = ["hf_", "sk-", "sk_", "nvapi-", "ghp_", "github_pat_", "glpat-", "AKIA", "xoxb-"];
    let has_password = text.split("://").skip(1).any(|rest| {
        let user = rest.split('/').next().and_then(|host| host.rsplit_once('@')).map(|(user, _)| user);
        user.is_some_and(|user| user.contains(':'))
    });
    let names = text.contains("Bearer ") || has_password;
    names
        || text
            .split(|character: char| !character.is_ascii_alphanumeric() && character != '_' && character != '-')
            .any(|part| part.len() >= 20 && FORMS.iter().any(|form| part.starts_with(form)))
}

/// Tells whether a flag's words follow it up to the next flag.
pub(crate) fn is_flag(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && !word[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.')
}

/// The words of a command without the secrets in them.
pub(crate) fn hidden(words: &[String]) -> Vec<Cow<'_, str>> {
    let mut behind_secret = false;
    let hide = |word: &String| match word.split_once('=') {
        Some((name, _)) if is_secret(name) => Some(format!("{name}={HIDDEN}")),
        _ => (has_key(word) || has_secret_member(word)).then(|| HIDDEN.to_owned()),
    };
    let mut shown = Vec::with_capacity(words.len());
    for word in words {
        if is_flag(word) {
            behind_secret = !word.contains('=') && is_secret(word);
            shown.push(hide(word).map_or(Cow::Borrowed(word.as_str()), Cow::Owned));
        } else if behind_secret {
            shown.push(Cow::Borrowed(HIDDEN));
        } else {
            shown.push(hide(word).map_or(Cow::Borrowed(word.as_str()), Cow::Owned));
        }
    }
    shown
}

/// Tells whether JSON in a word has a member that is called as a secret is.
fn has_secret_member(word: &str) -> bool {
    word.starts_with(['{', '[']) && {
        let quoted: Vec<&str> = word.split('"').collect();
        quoted.windows(2).any(|pair| pair[1].trim_start().starts_with(':') && is_secret(pair[0]))
    }
}

/// Words in which nothing is left that has the form of a key.
pub(crate) fn hidden_keys(words: Vec<String>) -> Vec<String> {
    words.into_iter().map(|word| if has_key(&word) { HIDDEN.to_owned() } else { word }).collect()
}

/// The value of what is called `name`, unless it is a secret.
pub(crate) fn hidden_value<'a>(name: &str, value: &'a str) -> &'a str {
    if is_secret(name) || has_key(value) || has_secret_member(value) { HIDDEN } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("HF_TOKEN", true)]
    #[case("HUGGING_FACE_HUB_TOKEN", true)]
    #[case("VLLM_API_KEY", true)]
    #[case("--api-key", true)]
    #[case("--hf_token", true)]
    #[case("vllmApiKey", true)]
    #[case("AWS_SECRET_ACCESS_KEY", true)]
    #[case("--ssl-keyfile-password", true)]
    #[case("--max-num-batched-tokens", false)]
    #[case("--max-num-batched-token", false)]
    #[case("--tokenizer", false)]
    #[case("--pad-token", false)]
    #[case("HF_TOKEN_PATH", false)]
    #[case("--ssl-keyfile", false)]
    #[case("", false)]
    fn a_secret_is_told_by_its_name(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_secret(name), expected);
    }

    #[rstest]
    #[case(&["--api-key", "a", "b", "--port", "1"], &["--api-key", "<hidden>", "<hidden>", "--port", "1"])]
    #[case(&["--api-key=a", "HF_TOKEN=b", "m"], &["--api-key=<hidden>", "HF_TOKEN=<hidden>", "m"])]
    #[case(&["m", "hf_abcdefghijklmnopqrstuvwx"], &["m", "<hidden>"])]
    #[case(&["--x", r#"{"api_key": "s", "n": 1}"#], &["--x", "<hidden>"])]
    #[case(&["--header", "Authorization: Bearer x", "redis://u:p@h:1/0", "http://h:1/a@b"], &["--header", "<hidden>", "<hidden>", "http://h:1/a@b"])]
    #[case(&["--x", r#"{"n": "api_key"}"#, "--t", "-1"], &["--x", r#"{"n": "api_key"}"#, "--t", "-1"])]
    fn words_are_shown_without_secrets(#[case] words: &[&str], #[case] expected: &[&str]) {
        let words: Vec<String> = words.iter().copied().map(String::from).collect();
        assert_eq!(hidden(&words), expected);
    }
}
