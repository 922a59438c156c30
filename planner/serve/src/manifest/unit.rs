//! Units of systemd, by its own rules (systemd.service(5) "COMMAND LINES", systemd.exec(5) "Environment"), which are no shell's: nothing
//! is redirected, no comment stands at a line's end, and a variable is `${NAME}` within a word or `$NAME` as a word of its own.

mod words;

use super::command;
use super::error::{ManifestError, Place};
use super::origin::Origin;
use super::reading::Reading;
use super::unknown::Why;
use super::variables::{Unread, Variables, bounded, is_name};
use crate::{Launch, secret};

use words::{Escapes, Words};

/// Whether a text is a unit: its first line that says anything begins one of its sections, or its name is one's.
pub(super) fn is(name: &str, text: &str) -> bool {
    if name.ends_with(".service") {
        return true;
    }
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(COMMENTS));
    lines.next().is_some_and(|line| matches!(line, "[Unit]" | "[Service]" | "[Install]"))
}

const COMMENTS: [char; 2] = ['#', ';'];

/// The engines that a unit starts.
pub(super) fn launches(reading: &Reading<'_>, text: &str) -> Result<Vec<Launch>, ManifestError> {
    let unit = Unit::of(reading, text)?;
    if let ([_, second, ..], false) = (&*unit.commands, unit.is_oneshot) {
        let what = "a second command of a service that is not of `Type=oneshot`, which systemd refuses,".to_owned();
        return Err(ManifestError::NotRead { at: unit.at(second.line), what, instead: "state one" });
    }
    let mut found = Vec::new();
    for command in &unit.commands {
        let at = unit.at(command.line);
        let words = if command.expands { unit.expanded(&command.words, &at)? } else { command.words.clone() };
        reading.charge(unit.variables.weight(), &at)?;
        let origin = Origin { through_shell: true, ..Origin::new(reading, at, String::new()) };
        let of_variables = unit.variables.are_in(&words);
        found.extend(command::of_program(words, &of_variables, unit.variables.clone(), &origin)?);
    }
    Ok(found)
}

/// What a unit says of what it starts.
struct Unit<'a> {
    reading: &'a Reading<'a>,
    commands: Vec<Command>,
    variables: Variables,
    is_oneshot: bool,
}

struct Command {
    line: usize,
    words: Vec<String>,
    /// Whether variables are put into its words.
    expands: bool,
}

impl<'a> Unit<'a> {
    fn of(reading: &'a Reading<'a>, text: &str) -> Result<Self, ManifestError> {
        let mut unit = Self { reading, commands: Vec::new(), variables: Variables::default(), is_oneshot: false };
        let (mut unset, mut files, mut passed) = (Vec::<String>::new(), Vec::new(), Variables::default());
        for Setting { line, key, value } in settings(text) {
            // Nothing takes back what was stated before.
            let takes_back = value.is_empty();
            match &*key {
                "ExecStart" if takes_back => unit.commands.clear(),
                "ExecStart" => unit.commands(line, &value)?,
                "Type" => unit.is_oneshot = value == "oneshot",
                "Environment" if takes_back => unit.variables = Variables::default(),
                "Environment" => {
                    for word in unit.words(line, &value)? {
                        let stated = word.split_once('=').filter(|(name, _)| is_name(name));
                        stated.into_iter().for_each(|(name, value)| unit.variables.set(name, vec![value.into()], true));
                    }
                }
                "EnvironmentFile" if takes_back => files.clear(),
                "EnvironmentFile" => {
                    let what = specified(&format!("EnvironmentFile={value:.100}"));
                    files.push(Unread::new(&what, Why::InFile, Some(line)));
                }
                "PassEnvironment" => {
                    for name in unit.words(line, &value)?.iter().filter(|name| is_name(name)) {
                        passed.set(name, vec![Why::NotInUnit.mark_of(name, line)], true);
                    }
                }
                "UnsetEnvironment" if takes_back => unset.clear(),
                "UnsetEnvironment" => unset.extend(unit.words(line, &value)?),
                _ => {}
            }
        }
        // What files say stands over what the unit says.
        unit.variables.stand_over(passed);
        files.into_iter().for_each(|file| unit.variables.unread(file));
        for word in unset {
            let (name, value) = word.split_once('=').map_or((&*word, None), |(name, value)| (name, Some(value)));
            let is = |words: &[String]| value.is_none_or(|value| words.first().is_some_and(|word| word == value));
            if unit.variables.get(name).is_some_and(is) {
                unit.variables.unset(name);
            }
        }
        Ok(unit)
    }

    fn at(&self, line: usize) -> Place {
        Place { file: self.reading.file.to_owned(), line: Some(line), path: String::new() }
    }

    /// The words of a value, with marks where its specifiers are.
    fn words(&self, line: usize, value: &str) -> Result<Vec<String>, ManifestError> {
        Words::of(value, Escapes::OfC).map(|word| Ok(specified(&word.map_err(|()| self.broken(line))?))).collect()
    }

    fn broken(&self, line: usize) -> ManifestError {
        ManifestError::Syntax {
            at: self.at(line),
            reason: "a quote has no end, and systemd ignores the line".to_owned(),
        }
    }

    /// The commands of a value: `;` as a word of its own stands between two.
    fn commands(&mut self, line: usize, value: &str) -> Result<(), ManifestError> {
        let mut words = Words::of(value, Escapes::OfC);
        loop {
            let Some(first) = words.next() else { return Ok(()) };
            let first = first.map_err(|()| self.broken(line))?;
            if first == ";" {
                continue;
            }
            let (prefixes, program) = first.split_at(first.len() - first.trim_start_matches(PREFIXES).len());
            let mut command = vec![specified(program)];
            let mut goes_on = false;
            // Only without quotes it is one.
            while !words.rest.is_empty() {
                if words.takes(";") {
                    goes_on = true;
                    break;
                }
                if words.takes("\\;") {
                    command.push(";".to_owned());
                    continue;
                }
                let Some(word) = words.next() else { break };
                let word = specified(&word.map_err(|()| self.broken(line))?);
                self.reading.charge(32 + word.len(), &self.at(line))?;
                command.push(word);
            }
            if prefixes.contains('@') && command.len() > 1 {
                // What the program sees as its own name.
                command.remove(1);
            }
            self.commands.push(Command { line, words: command, expands: !prefixes.contains(':') });
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// The words in which systemd has put variables.
    fn expanded(&self, words: &[String], at: &Place) -> Result<Vec<String>, ManifestError> {
        let mut expanded = Vec::with_capacity(words.len());
        for word in words {
            match word.strip_prefix('$').filter(|name| !name.starts_with(['{', '$'])) {
                Some(name) => {
                    let value = self.value(name, || format!("${name}"), at)?;
                    expanded.extend(Words::of(&value, Escapes::Plain).filter_map(Result::ok));
                }
                None => expanded.push(self.replaced(word, at)?),
            }
        }
        Ok(expanded)
    }

    /// A word with the values of `${NAME}` in it, whatever they are; `$$` is a dollar sign.
    fn replaced(&self, word: &str, at: &Place) -> Result<String, ManifestError> {
        let mut out = String::with_capacity(word.len());
        let mut rest = word;
        while let Some((before, behind)) = rest.split_once('$') {
            out += before;
            let name = behind.strip_prefix('{').and_then(|inside| {
                // Nothing is put for what has a colon in it.
                let end = inside.find(['}', ':'])?;
                inside[end..].starts_with('}').then(|| &inside[..end])
            });
            rest = match name {
                Some(name) => {
                    out += &self.value(name, || format!("${{{name}}}"), at)?;
                    &behind[name.len() + 2..]
                }
                None => {
                    out.push('$');
                    behind.strip_prefix('$').unwrap_or(behind)
                }
            };
            bounded(out.len(), at)?;
        }
        Ok(out + rest)
    }

    /// The value of a variable; what no variable can be called is empty.
    fn value(&self, name: &str, written: impl Fn() -> String, at: &Place) -> Result<String, ManifestError> {
        match self.variables.seen(name, &written).as_deref().and_then(<[String]>::first) {
            Some(_) if secret::is_secret(name) => Ok(secret::HIDDEN.to_owned()),
            Some(value) => {
                self.reading.charge(value.len(), at)?;
                Ok(value.clone())
            }
            None if is_name(name) => Ok(Why::NotInUnit.mark(&written())),
            None => Ok(String::new()),
        }
    }
}

/// How failures, users and variables are taken.
const PREFIXES: [char; 6] = ['-', '@', ':', '+', '!', '|'];

/// A setting of the service.
struct Setting {
    line: usize,
    key: String,
    value: String,
}

/// The settings of the section `[Service]`. A line goes on behind a backslash, over the comments between.
fn settings(text: &str) -> Vec<Setting> {
    let mut found = Vec::new();
    let mut in_service = false;
    let mut open: Option<(usize, String)> = None;
    let mut take = |line: usize, text: &str| {
        let text = text.trim();
        if let Some(section) = text.strip_prefix('[') {
            in_service = section == "Service]";
        } else if let Some((key, value)) = text.split_once('=').filter(|_| in_service) {
            found.push(Setting { line, key: key.trim_end().to_owned(), value: value.trim_start().to_owned() });
        }
    };
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.starts_with(COMMENTS) {
            continue;
        }
        let (begin, mut whole) = open.take().unwrap_or((index + 1, String::new()));
        let backslashes = line.len() - line.trim_end_matches('\\').len();
        whole += line;
        if backslashes % 2 == 1 {
            whole.replace_range(whole.len() - 1.., " ");
            open = Some((begin, whole));
        } else {
            take(begin, &whole);
        }
    }
    open.into_iter().for_each(|(begin, whole)| take(begin, &whole));
    found
}

/// A word in which the specifiers are marked, `%i`, for which systemd puts what is known only where the unit runs.
fn specified(word: &str) -> String {
    let mut marked = String::with_capacity(word.len());
    let mut characters = word.chars().peekable();
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
    use rstest::rstest;

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
        assert!(error.starts_with("vllm.service:6: `${LENGTH}` is not set in the unit"), "{error}");
    }

    #[rstest]
    #[case::comments_between("ExecStart=vllm serve m \\\n# why\n ; and how\n  -tp 2\n", "vllm serve m -tp 2")]
    #[case::one_argument("Environment=\"X=-tp 2\"\nExecStart=vllm serve m ${X}\n", "X='-tp 2' vllm serve m '-tp 2'")]
    #[case::split("Environment=\"X=-tp 2\"\nExecStart=vllm serve m $X\n", "X='-tp 2' vllm serve m -tp 2")]
    #[case::within_a_word("Environment=L=2\nExecStart=vllm serve m -tp=$L\n", "L=2 vllm serve m '-tp=$L'")]
    #[case::braces_within("Environment=L=2\nExecStart=vllm serve m -tp=${L}0\n", "L=2 vllm serve m -tp=20")]
    #[case::no_name("Environment=L=2\nExecStart=vllm serve m -tp $L$L\n", "L=2 vllm serve m -tp")]
    #[case::no_default("ExecStart=vllm serve m -tp ${L:-2}\n", "vllm serve m -tp '${L:-2}'")]
    #[case::dollar("ExecStart=vllm serve m -tp $$x\n", "vllm serve m -tp '$x'")]
    #[case::no_redirect("ExecStart=vllm serve m > log 2>&1\n", "vllm serve m '>' log '2>&1'")]
    #[case::no_comment("ExecStart=vllm serve m # why\n", "vllm serve m '#' why")]
    #[case::semicolon("ExecStart=vllm serve m \\; a;\n", "vllm serve m ';' 'a;'")]
    #[case::quotes("ExecStart=vllm serve 'a b' \"c\\x20d\"e\\te \\d\n", "vllm serve 'a b' 'c de\\u0009e' \"\\\\d\"")]
    #[case::unset("Environment=A=1 B=2 C=3\nUnsetEnvironment=A B=2 C=4\nExecStart=vllm serve m\n", "C=3 vllm serve m")]
    #[case::no_expansion("Environment=L=2\nExecStart=:vllm serve $L\n", "L=2 vllm serve '$L'")]
    #[case::own_name("ExecStart=@/usr/bin/vllm server serve m\n", "/usr/bin/vllm serve m")]
    #[case::another_section("ExecStart=vllm serve m\n[Install]\nExecStart=vllm serve n\n", "vllm serve m")]
    #[case::several("Type=oneshot\nExecStart=true ; vllm serve m ; false\n", "vllm serve m")]
    #[case::a_shell(
        "Environment=L=2\nExecStart=/bin/sh -c \"exec vllm serve m -tp $${L:-3}\"\n",
        "L=2 vllm serve m -tp 2"
    )]
    #[case::taken_back(
        "Environment=A=1\nEnvironment=\nExecStart=vllm serve a \\\n  -tp 3\nExecStart=\nExecStart=vllm serve b\n",
        "vllm serve b"
    )]
    #[case::percent(
        "ExecStart=vllm serve m --chat-template %%t --port 80%i\n",
        "vllm serve m --chat-template %t --port 80%i"
    )]
    fn a_command_of_a_unit_is_read_as_systemd_reads_it(#[case] service: &str, #[case] expected: &str) {
        let found = manifest::read("a.service", format!("[Service]\n{service}").as_bytes()).unwrap();
        assert_eq!((found.len(), found[0].to_string()), (1, expected.to_owned()));
    }

    #[rstest]
    #[case(
        "ExecStart=vllm serve m --max-model-len %i\n",
        "a.service:2: `%i` is a specifier of systemd; write the value"
    )]
    #[case(
        "EnvironmentFile=-/etc/vllm\nEnvironment=L=2\nExecStart=vllm serve m -tp $L\n",
        "a.service:4: `$L` (line 2) may be set by a file"
    )]
    #[case(
        "ExecStart=vllm serve m\nExecStart=vllm serve n\n",
        "a.service:3: a second command of a service that is not"
    )]
    #[case("ExecStart=vllm serve 'm\n", "a.service:2: a quote has no end")]
    fn what_a_unit_leaves_open_is_refused(#[case] service: &str, #[case] expected: &str) {
        let error = manifest::read("a.service", format!("[Service]\n{service}").as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
