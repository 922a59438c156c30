//! Scripts of Windows, for `cmd.exe` and for PowerShell, as scripts that say the same, line by line.

use crate::words::assignment;

/// Whose script it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Batch,
    PowerShell,
}

impl Dialect {
    /// By the name of the file, or by the line that most of them begin with.
    pub(super) fn of(name: &str, text: &str) -> Option<Self> {
        let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
        match extension.as_deref() {
            Some("bat" | "cmd") => Some(Self::Batch),
            Some("ps1") => Some(Self::PowerShell),
            _ => text.trim_start().get(..5).filter(|word| word.eq_ignore_ascii_case("@echo")).map(|_| Self::Batch),
        }
    }

    /// What a line ends with that goes on.
    const fn goes_on(self) -> char {
        match self {
            Self::Batch => '^',
            Self::PowerShell => '`',
        }
    }

    /// What a block is between.
    const fn block(self) -> (char, char) {
        match self {
            Self::Batch => ('(', ')'),
            Self::PowerShell => ('{', '}'),
        }
    }

    fn is_comment(self, line: &str) -> bool {
        let word = line.split_whitespace().next().unwrap_or("").to_ascii_lowercase();
        match self {
            Self::Batch => word == "rem" || word.starts_with(':'),
            Self::PowerShell => word.starts_with('#'),
        }
    }
}

/// The script.
pub(super) fn script(dialect: Dialect, text: &str) -> String {
    let mut script = String::new();
    let mut goes_on = false;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.trim().trim_start_matches('@');
        if dialect == Dialect::PowerShell && line.ends_with("@(") {
            let (list, count) = list_of_lines(line, &mut lines);
            script += &command(dialect, &list);
            script.extend(std::iter::repeat_n('\n', count));
            continue;
        }
        let (part, more) = line.strip_suffix(dialect.goes_on()).map_or((line, false), |part| (part, true));
        let (open, close) = dialect.block();
        script += &match part {
            _ if goes_on => words(dialect, part),
            _ if dialect.is_comment(part) => String::new(),
            // What is in a block runs under a condition, whatever it is.
            _ if part.starts_with(close) && part.ends_with(open) => "else".to_owned(),
            _ if part.starts_with(close) => "fi".to_owned(),
            _ if part.ends_with(open) => "if :; then".to_owned(),
            _ => statement(dialect, part),
        };
        script += if more { " \\\n" } else { "\n" };
        goes_on = more;
    }
    script
}

/// A list whose elements stand on lines of their own, as one line, and the lines that it takes.
fn list_of_lines<'a>(first: &str, lines: &mut impl Iterator<Item = &'a str>) -> (String, usize) {
    let (mut list, mut count) = (first.to_owned(), 1);
    for line in lines {
        count += 1;
        let line = line.trim();
        if line.starts_with(')') {
            list.push(')');
            break;
        }
        if !line.starts_with('#') {
            list.extend([line, ","]);
        }
    }
    (list, count)
}

/// Assignments and commands, behind a condition where they stand behind one.
fn statement(dialect: Dialect, line: &str) -> String {
    if dialect == Dialect::PowerShell {
        return command(dialect, line);
    }
    let (mut rest, mut is_conditional) = called(line);
    let mut commands = String::new();
    while !rest.is_empty() {
        // A value goes on up to what joins commands.
        let (part, joint, behind) = joined(rest);
        let (part, says_when) = called(part);
        is_conditional |= says_when;
        commands += &command(dialect, part);
        commands += if joint == "&" { ";" } else { joint };
        rest = behind;
    }
    if is_conditional && !commands.is_empty() { format!("if :; then {commands}; fi") } else { commands }
}

/// What stands in front of a word that joins commands, that word, and what stands behind it.
fn joined(line: &str) -> (&str, &str, &str) {
    let mut rest = line;
    while !rest.trim_start().is_empty() {
        let (word, behind) = first_word(rest);
        if matches!(word, "&" | "&&" | "||") {
            return (&line[..line.len() - rest.len()], word, behind);
        }
        rest = behind;
    }
    (line, "", "")
}

/// What a line calls, and whether it says when: `call`, `if` and `for` stand in front of each other as often as they like.
fn called(mut line: &str) -> (&str, bool) {
    let is = |word: &str, known: &[&str]| known.contains(&&*word.to_ascii_lowercase());
    let mut is_conditional = false;
    loop {
        let (first, mut behind) = first_word(line);
        let (is_if, is_for) = (is(first, &["if"]), is(first, &["for"]));
        if !is_if && !is_for && !is(first, &["call"]) {
            return (line, is_conditional);
        }
        is_conditional |= is_if || is_for;
        let mut words = std::iter::from_fn(|| {
            let (word, rest) = first_word(behind);
            behind = rest;
            (!word.is_empty()).then_some(word)
        });
        if is_for {
            words.find(|word| is(word, &["do"]));
        } else if is_if && words.find(|word| !is(word, &["/i", "not"])).is_some_and(|word| is(word, &ASKS)) {
            words.next();
        }
        line = behind;
    }
}

/// What a condition asks about the word behind it.
const ASKS: [&str; 3] = ["exist", "defined", "errorlevel"];

/// The first word of a line, with its quotes, and what stands behind it.
fn first_word(line: &str) -> (&str, &str) {
    let line = line.trim_start();
    let mut in_quotes = false;
    let end = line.find(|char: char| {
        in_quotes ^= char == '"';
        char.is_whitespace() && !in_quotes
    });
    line.split_at(end.unwrap_or(line.len()))
}

/// A command without what stands in front of its program.
fn command(dialect: Dialect, line: &str) -> String {
    let line = line.trim_start();
    let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    match (dialect, first.to_ascii_lowercase().as_str()) {
        (Dialect::Batch, "set") => {
            let stated = rest.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(rest);
            let value =
                |(name, value): (&str, &str)| format!("export {}={}", name.to_uppercase(), quoted(dialect, value));
            assignment(stated).map(value).unwrap_or_default()
        }
        // A title and options stand in front.
        (Dialect::Batch, "start") => {
            let all = tokens(dialect, rest);
            words(dialect, &behind_options(&all).join(" "))
        }
        (Dialect::PowerShell, "&") => words(dialect, rest),
        (Dialect::PowerShell, _) if line.starts_with('$') => {
            let Some((name, value)) = line.split_once('=') else { return String::new() };
            let name = name.trim().trim_start_matches('$').to_uppercase();
            let (export, name) = name.strip_prefix("ENV:").map_or(("", &*name), |name| ("export ", name));
            if let Some(list) = list(value) {
                let list: Vec<String> = list.into_iter().map(|word| quoted(dialect, word)).collect();
                return format!("{export}{name}=({})", list.join(" "));
            }
            match tokens(dialect, value).as_slice() {
                [word] if assignment(&format!("{name}=")).is_some() && !word.starts_with(['@', '(']) => {
                    format!("{export}{name}={}", shown(dialect, word))
                }
                _ => String::new(),
            }
        }
        _ => words(dialect, line),
    }
}

/// What `start` starts: behind a title, the first word in quotes, and options on either side of it.
fn behind_options(mut words: &[String]) -> &[String] {
    /// Those with a value behind them.
    const WITH_VALUE: [&str; 3] = ["/d", "/node", "/affinity"];
    let mut has_title = false;
    while let Some(word) = words.first() {
        let is_title = word.starts_with('"') && !has_title;
        if !is_title && !word.starts_with('/') {
            break;
        }
        has_title |= is_title;
        let takes = WITH_VALUE.contains(&&*word.to_ascii_lowercase());
        words = &words[(1 + usize::from(takes)).min(words.len())..];
    }
    words
}

/// The elements of `@("a", 'b', 3)`, with their quotes; none where one is more than a word.
fn list(value: &str) -> Option<Vec<&str>> {
    let inside = value.trim().strip_prefix("@(")?.strip_suffix(')')?;
    let mut quote = None;
    let elements = inside.split(|char: char| {
        match (quote, char) {
            (None, '"' | '\'') => quote = Some(char),
            (Some(open), char) if open == char => quote = None,
            _ => {}
        }
        quote.is_none() && char == ','
    });
    let elements = elements.map(str::trim).filter(|element| !element.is_empty());
    elements.map(|element| (tokens(Dialect::PowerShell, element).len() == 1).then_some(element)).collect()
}

/// The words of a line, as a shell reads them.
fn words(dialect: Dialect, line: &str) -> String {
    let shown = |word: &String| shown(dialect, word);
    tokens(dialect, line).iter().map(shown).collect::<Vec<_>>().join(" ")
}

/// Words with their quotes.
fn tokens(dialect: Dialect, line: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let (mut quote, mut in_word) = (None, false);
    for char in line.chars() {
        match (quote, char) {
            (None, char) if char.is_whitespace() => {
                in_word = false;
                continue;
            }
            (None, '#') if dialect == Dialect::PowerShell && !in_word => break,
            (None, '"') => quote = Some(char),
            (None, '\'') if dialect == Dialect::PowerShell => quote = Some(char),
            (Some(open), char) if open == char => quote = None,
            _ => {}
        }
        match found.last_mut().filter(|_| in_word) {
            Some(word) => word.push(char),
            None => found.push(char.to_string()),
        }
        in_word = true;
    }
    found
}

/// A word as a shell reads it; what joins commands is what it is there.
fn shown(dialect: Dialect, word: &str) -> String {
    match word {
        "&" => ";".to_owned(),
        "&&" | "||" | "|" | ">" | ">>" | "2>&1" => word.to_owned(),
        _ => quoted(dialect, word),
    }
}

fn quoted(dialect: Dialect, word: &str) -> String {
    let literal = dialect == Dialect::PowerShell && word.starts_with('\'');
    let mut shown = String::from("\"");
    let mut rest = word;
    while let Some(char) = rest.chars().next() {
        rest = &rest[char.len_utf8()..];
        let name =
            |text: &str| text.find(|char: char| !(char.is_ascii_alphanumeric() || char == '_')).unwrap_or(text.len());
        match (dialect, char) {
            (_, '"') if !literal => {}
            (Dialect::PowerShell, '\'') if literal => {}
            (Dialect::Batch, '^') => {}
            (Dialect::Batch, '%')
                if rest.get(name(rest)..).is_some_and(|rest| rest.starts_with('%')) && name(rest) > 0 =>
            {
                let (variable, behind) = rest.split_at(name(rest));
                shown += &format!("${{{}}}", variable.to_uppercase());
                rest = &behind[1..];
            }
            // `%1`, and `%*` for all of them.
            (Dialect::Batch, '%') if rest.starts_with(|behind: char| behind == '*' || behind.is_ascii_digit()) => {
                let (argument, behind) = rest.split_at(1);
                shown += &format!("${{{}}}", argument.replace('*', "@"));
                rest = behind;
            }
            // `@name` is a list under a name.
            (Dialect::PowerShell, '$' | '@') if !literal && (char == '$' || rest.len() + 1 == word.len()) => {
                let behind = rest.trim_start_matches('{');
                let behind =
                    behind.get(..4).filter(|scope| scope.eq_ignore_ascii_case("env:")).map_or(behind, |_| &behind[4..]);
                let (variable, behind) = behind.split_at(name(behind));
                rest = behind.strip_prefix('}').filter(|_| rest.starts_with('{')).unwrap_or(behind);
                // What is a list is all its elements, whichever sign stands before it.
                let is_whole = shown.len() == 1 && rest.trim_end_matches('"').is_empty();
                let all = if is_whole { "[@]" } else { "" };
                shown += &format!("${{{}{all}}}", variable.to_uppercase());
            }
            (_, '\\' | '"' | '$' | '`') => shown.extend(['\\', char]),
            (_, char) => shown.push(char),
        }
    }
    shown + "\""
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use crate::manifest;

    #[rstest]
    #[case::batch(
        "start.bat",
        "@echo off\r\nrem vllm serve none\r\nset \"MODEL=C:\\my models\\a.gguf\"\r\nset CUDA_VISIBLE_DEVICES=0\r\nC:\\llama\\llama-server.exe -m \"%model%\" ^\r\n  -c 8192 > log.txt 2>&1\r\npause\r\n",
        "CUDA_VISIBLE_DEVICES=0 MODEL=\"C:\\\\my models\\\\a.gguf\" \"C:\\\\llama\\\\llama-server.exe\" -m \"C:\\\\my models\\\\a.gguf\" -c 8192",
        5
    )]
    #[case::start("start.cmd", "start \"a server\" /b llama-server.exe -m a.gguf\n", "llama-server.exe -m a.gguf", 1)]
    #[case::quoted("start.cmd", "start \"\" \"llama-server.exe\" -m a.gguf\n", "llama-server.exe -m a.gguf", 1)]
    #[case::power_shell(
        "Start.ps1",
        "# ours\n$env:CUDA_VISIBLE_DEVICES = \"0\"\n$model = 'D:\\m\\a.gguf'\n& \"D:\\llama\\llama-server.exe\" -m $Model `\n  --chat-template-kwargs '{\"a\": 1}' # the port\n",
        "CUDA_VISIBLE_DEVICES=0 \"D:\\\\llama\\\\llama-server.exe\" -m \"D:\\\\m\\\\a.gguf\" --chat-template-kwargs '{\"a\": 1}'",
        4
    )]
    #[case::joined(
        "a.bat",
        "set CUDA_VISIBLE_DEVICES=1 && call llama-server.exe -m a.gguf & pause\n",
        "CUDA_VISIBLE_DEVICES=1 llama-server.exe -m a.gguf",
        1
    )]
    #[case::a_list(
        "start.ps1",
        "$model = 'm'\n$params = @(\"--max-model-len\", '8192', \"--max-num-seqs\", 8)\nvllm serve $Model @params --port 80\n",
        "vllm serve m --max-model-len 8192 --max-num-seqs 8 --port 80",
        3
    )]
    #[case::a_list_of_lines(
        "start.ps1",
        "$params = @(\n  '--max-num-seqs'\n  '8'\n)\nvllm serve m $params\n",
        "vllm serve m --max-num-seqs 8",
        5
    )]
    #[case::linux("start.ps1", "wsl vllm serve org/m --port 80\n", "vllm serve org/m --port 80", 1)]
    fn a_script_of_windows_starts_what_it_says(
        #[case] name: &str,
        #[case] text: &str,
        #[case] command: &str,
        #[case] line: usize,
    ) {
        let found = manifest::read(name, text.as_bytes()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].to_string(), found[0].place.clone()), (command.to_owned(), format!("{name}:{line}")));
    }

    #[rstest]
    #[case("a.bat", "llama-server.exe -m %MODEL%\n", "MODEL")]
    #[case("a.bat", "echo a & if exist x llama-server.exe -m a.gguf\n", "under a condition")]
    #[case("a.bat", "llama-server.exe -m m -np %1\n", "`$1` is an argument of the script")]
    #[case("a.bat", "llama-server.exe -m m %*\n", "`$@` is an argument of the script")]
    #[case("a.bat", "if not exist x set M=a.gguf\nllama-server.exe -m %M%\n", "condition")]
    #[case("a.ps1", "$model = Get-Item x y\nllama-server -m $model\n", "MODEL")]
    #[case(
        "a.bat",
        "if /i not \"%X%\"==\"a b\" call if exist \"c d\" llama-server.exe -m a.gguf\n",
        "under a condition"
    )]
    #[case("a.bat", "if exist x (\nset M=a.gguf\n) else (\nset M=b.gguf\n)\nllama-server.exe -m %M%\n", "condition")]
    fn what_a_script_of_windows_leaves_open_is_refused(#[case] name: &str, #[case] text: &str, #[case] expected: &str) {
        let error = manifest::read(name, text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
