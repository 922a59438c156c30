//! Chat templates are programs of strangers. Their steps are counted where they run; their memory and their stack are the
//! process's, so that they run in one of their own, which the system bounds.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use cacheplan::files::Limit;
use cacheplan::runtime::{Prompt, Prompts};
use cacheplan::text::{ChatTemplate, Message, TemplateSource};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// What makes a process of this command a runner of one template.
pub(crate) const RUNNER: &str = "--run-chat-template";

/// What a template may take beside its stack, and seconds of a processor for all that one process makes.
const MEMORY: usize = 64 << 20;
const SECONDS: u64 = 10;

/// Makes prompts of conversations.
pub(super) struct Templates<'a> {
    prompts: &'a Prompts,
    runner: Option<Runner>,
}

/// A process that runs a template.
struct Runner {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// What it answers.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Prompt(String),
    Refused(String),
}

impl<'a> Templates<'a> {
    pub(super) fn new(prompts: &'a Prompts) -> Self {
        Self { prompts, runner: None }
    }

    /// The token ids of a prompt.
    pub(super) fn ids(&mut self, prompt: &Prompt) -> Result<Vec<u32>, Failure> {
        match prompt {
            Prompt::Chat(messages) => {
                let rendered = Prompt::Rendered(self.render(messages)?);
                self.prompts.ids(&rendered).map_err(Failure::error)
            }
            prompt => self.prompts.ids(prompt).map_err(Failure::error),
        }
    }

    fn render(&mut self, messages: &[Message]) -> Result<String, Failure> {
        let template = self.prompts.template().map_err(Failure::error)?;
        if !cfg!(unix) {
            return template.render(messages).map_err(Failure::error);
        }
        let source = template.source();
        let began = self.runner.is_none();
        let mut answer = self.ask(source, messages);
        // One that has made many prompts has used up its time; the next begins anew.
        if answer.is_err() && !began {
            self.runner = None;
            answer = self.ask(source, messages);
        }
        match answer {
            Ok(Answer::Prompt(prompt)) => Ok(prompt),
            Ok(Answer::Refused(why)) => Err(Failure::new(1, why)),
            Err(error) => {
                self.runner = None;
                let mib = MEMORY >> 20;
                Err(Failure::new(
                    1,
                    format!(
                        "{}: its process ended ({error}); a template has {mib} MiB of memory, a bounded stack and {SECONDS} s",
                        source.file
                    ),
                ))
            }
        }
    }

    fn ask(&mut self, source: &TemplateSource, messages: &[Message]) -> io::Result<Answer> {
        let runner = match &mut self.runner {
            Some(runner) => runner,
            none => none.insert(Runner::start(source)?),
        };
        let line = serde_json::to_string(messages)? + "\n";
        runner.to.write_all(line.as_bytes())?;
        runner.to.flush()?;
        let mut answer = String::new();
        // In JSON a character takes six bytes at most.
        let most = 6 * Limit::PROMPT.bytes + 1024;
        if runner.from.by_ref().take(most).read_line(&mut answer)? == 0 {
            return Err(io::Error::other(runner.child.wait()?.to_string()));
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Runner {
    fn start(source: &TemplateSource) -> io::Result<Self> {
        let own = std::env::current_exe()?;
        let kib = (MEMORY + source.stack_bytes()) >> 10;
        let limits = format!("ulimit -c 0; ulimit -t {SECONDS} && ulimit -d {kib} && exec \"$0\" {RUNNER}");
        let mut child = Command::new("sh")
            .args(["-c", &limits])
            .arg(own)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (Some(mut to), Some(from)) = (to, from) else { return Err(io::ErrorKind::BrokenPipe.into()) };
        to.write_all((serde_json::to_string(source)? + "\n").as_bytes())?;
        Ok(Self { child, to, from: BufReader::new(from) })
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the template of the first line on the conversations of the others.
pub(crate) fn run() -> ExitCode {
    let mut lines = io::stdin().lock().lines().map_while(Result::ok);
    let source = lines.next().and_then(|line| serde_json::from_str::<TemplateSource>(&line).ok());
    let Some(template) = source.and_then(|source| ChatTemplate::from_source(source).ok()) else {
        return ExitCode::FAILURE;
    };
    let mut out = io::stdout().lock();
    for line in lines {
        let Ok(messages) = serde_json::from_str::<Vec<Message>>(&line) else { return ExitCode::FAILURE };
        let answer = match template.render(&messages) {
            Ok(prompt) => Answer::Prompt(prompt),
            Err(error) => Answer::Refused(error.to_string()),
        };
        let said = serde_json::to_string(&answer).map_err(io::Error::other);
        if said.and_then(|said| out.write_all((said + "\n").as_bytes()).and_then(|()| out.flush())).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
