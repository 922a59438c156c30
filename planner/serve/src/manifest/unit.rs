//! Units of systemd, as scripts that say the same, line by line.

use super::unknown::Why;

/// Whether a text is a unit: its first line that says anything begins one of its sections.
pub(super) fn is(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';']));
    lines.next().is_some_and(|line| matches!(line, "[Unit]" | "[Service]" | "[Install]"))
}

/// The script: what it starts, behind the variables that it sets; all else is left out, and lines keep their numbers.
pub(super) fn script(text: &str) -> String {
    const KEYS: [&str; 2] = ["ExecStart", "Environment"];
    let mut lines: Vec<String> = Vec::new();
    // The lines that each of the keys has stated.
    let mut stated: [Vec<usize>; 2] = Default::default();
    let mut goes_on: Option<usize> = None;
    for (index, line) in text.lines().enumerate() {
        let (key, value) = line.trim_start().split_once('=').unwrap_or_default();
        let of = goes_on.or_else(|| KEYS.iter().position(|known| *known == key.trim_end()));
        let kept = match of {
            None => String::new(),
            Some(_) if goes_on.is_some() => line.to_owned(),
            // Nothing takes back what was stated before.
            Some(of) if value.trim().is_empty() => {
                stated[of].drain(..).for_each(|before| lines[before].clear());
                String::new()
            }
            // Its prefixes say how failures and users are taken.
            Some(0) => value.trim_start().trim_start_matches(['-', '@', ':', '+', '!']).to_owned(),
            Some(_) => format!("export {value}"),
        };
        let kept = specified(kept.trim_end());
        goes_on = of.filter(|_| kept.ends_with('\\'));
        if let Some(of) = of {
            stated[of].push(index);
        }
        lines.push(kept);
    }
    lines.join("\n") + "\n"
}

/// A line in which the specifiers are marked, `%i`, for which systemd puts what is known only where the unit runs.
fn specified(line: &str) -> String {
    let mut marked = String::with_capacity(line.len());
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match characters.peek().copied().filter(|_| character == '%') {
            Some('%') => marked.extend(characters.next()),
            Some(letter) if letter.is_ascii_alphabetic() => {
                marked += &Why::Specifier.mark(&format!("%{letter}"));
                characters.next();
            }
            _ => marked.push(character),
        }
    }
    marked
}

#[cfg(test)]
mod tests {
    use crate::manifest;

    const UNIT: &str = "# of ours\n[Unit]\nDescription=vllm serve nothing\n[Service]\nEnvironment=\"HF_HOME=/data\" A=1\nExecStart=-/opt/venv/bin/vllm serve m --max-model-len \\\n  ${LENGTH}\nRestart=always\n";

    #[test]
    fn a_unit_starts_what_it_says_in_its_environment() {
        let text = UNIT.replace("${LENGTH}", "8192");
        let found = manifest::read("vllm.service", text.as_bytes()).unwrap();
        assert_eq!(found.len(), 1);
        let expected = "A=1 HF_HOME=/data /opt/venv/bin/vllm serve m --max-model-len 8192";
        assert_eq!((found[0].to_string().as_str(), found[0].place.as_str()), (expected, "vllm.service:6"));
        let error = manifest::read("vllm.service", UNIT.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("vllm.service:6") && error.contains("LENGTH"), "{error}");
    }

    #[test]
    fn an_empty_value_takes_back_what_was_stated() {
        let text = "[Service]\nEnvironment=A=1\nEnvironment=\nExecStart=vllm serve a \\\n  -tp 3\nExecStart=\nExecStart=vllm serve b\n";
        let found = manifest::read("a.service", text.as_bytes()).unwrap();
        assert_eq!((found.len(), found[0].to_string().as_str()), (1, "vllm serve b"));
        assert_eq!(found[0].place, "a.service:7");
    }

    #[test]
    fn a_specifier_is_refused_where_it_matters() {
        let unit = |flag: &str| format!("[Service]\nExecStart=vllm serve m {flag}\n");
        let read = |flag: &str| manifest::read("a@.service", unit(flag).as_bytes());
        let error = read("--max-model-len %i").unwrap_err().to_string();
        assert!(error.starts_with("a@.service:2: `%i` is a specifier of systemd; write the value"), "{error}");
        assert_eq!(read("--port 80%i").unwrap()[0].words[4], "80%i");
        assert_eq!(read("--chat-template %%t").unwrap()[0].words[4], "%t");
    }
}
