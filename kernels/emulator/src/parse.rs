//! PTX text to kernels. What is not known is an error that names its line.

use crate::PtxError;
use crate::kernel::{Guard, Instruction, Kernel, Special};
use crate::table;
use crate::types::{Address, Operand, Register, Type};
use std::collections::HashMap;

/// The kernels of one PTX file.
#[derive(Clone, Debug)]
pub struct Module {
    /// In the order of the file.
    pub kernels: Vec<Kernel>,
}

impl Module {
    /// Reads PTX text and decodes all of it.
    ///
    /// # Errors
    /// The first line that is not known: an instruction, a modifier, a directive.
    pub fn parse(text: &str) -> Result<Self, PtxError> {
        let lines = strip(text);
        let files = lines.iter().filter_map(|line| file(&line.text)).collect();
        let mut parser = Parser { lines, at: 0, files, shared: Vec::new() };
        let mut kernels = Vec::new();
        while parser.at < parser.lines.len() {
            if let Some(kernel) = parser.directive()? {
                kernels.push(kernel);
            }
        }
        Ok(Self { kernels })
    }

    /// The kernel of that name.
    ///
    /// # Errors
    /// The names there are, where none is that one.
    pub fn kernel(&self, name: &str) -> Result<&Kernel, PtxError> {
        self.kernels.iter().find(|kernel| kernel.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
            PtxError { line: 0, what: format!("no kernel {name}; there are {}", names.join(", ")) }
        })
    }
}

struct Line {
    number: u32,
    text: String,
}

/// The lines that say something, without comments.
fn strip(text: &str) -> Vec<Line> {
    (1..)
        .zip(text.lines())
        .map(|(number, line)| Line { number, text: line.split("//").next().unwrap_or("").trim().to_owned() })
        .filter(|line| !line.text.is_empty())
        .collect()
}

/// `.file 1 "folder/name.cu"` as number and name; nvcc writes these behind the code that refers to them.
fn file(text: &str) -> Option<(u32, String)> {
    let (number, name) = text.strip_prefix(".file")?.trim().split_once(char::is_whitespace)?;
    let name = name.split('"').nth(1)?;
    Some((number.parse().ok()?, name.rsplit('/').next().unwrap_or(name).to_owned()))
}

/// Shared memory that is declared outside of kernels: its size, or none where the launch says it.
struct SharedSymbol {
    name: String,
    align: usize,
    bytes: Option<usize>,
}

struct Parser {
    lines: Vec<Line>,
    at: usize,
    files: HashMap<u32, String>,
    shared: Vec<SharedSymbol>,
}

impl Parser {
    fn error<T>(&self, what: impl Into<String>) -> Result<T, PtxError> {
        let line = self.lines.get(self.at).or(self.lines.last()).map_or(0, |line| line.number);
        Err(PtxError { line, what: what.into() })
    }

    fn line(&self) -> Result<&str, PtxError> {
        match self.lines.get(self.at) {
            Some(line) => Ok(&line.text),
            None => self.error("the file ends here"),
        }
    }

    /// One directive at the top of the file.
    fn directive(&mut self) -> Result<Option<Kernel>, PtxError> {
        let text = self.line()?.to_owned();
        if text.contains(".entry ") {
            return self.kernel(&text).map(Some);
        }
        if text.starts_with(".section") {
            while !self.line()?.ends_with('}') {
                self.at += 1;
            }
        } else if text.starts_with(".extern .shared") || text.starts_with(".shared") {
            let declared = text.trim_start_matches(".extern ").trim_end_matches(';');
            match declaration(declared) {
                Some((name, align, bytes)) => {
                    let bytes = (!text.starts_with(".extern")).then_some(bytes);
                    self.shared.push(SharedSymbol { name, align, bytes });
                }
                None => return self.error(format!("declaration {text}")),
            }
        } else if ![".version ", ".target ", ".address_size ", ".file"].iter().any(|known| text.starts_with(known)) {
            return self.error(format!("directive {text}"));
        }
        self.at += 1;
        Ok(None)
    }

    fn kernel(&mut self, head: &str) -> Result<Kernel, PtxError> {
        let name = head.split(".entry").nth(1).unwrap_or("").trim().trim_end_matches(['(', ')']).trim().to_owned();
        let mut body = Body::new(name, &self.shared);
        if !head.ends_with(')') {
            self.at += 1;
            while !self.line()?.starts_with(')') {
                let text = self.line()?.trim_end_matches(',').to_owned();
                let Some((name, align, bytes)) = text.strip_prefix(".param").and_then(declaration) else {
                    return self.error(format!("parameter {text}"));
                };
                let offset = body.kernel.param_bytes.next_multiple_of(align);
                body.symbols.insert(name, Symbol::Fixed(offset as u64));
                body.kernel.param_bytes = offset + bytes;
                self.at += 1;
            }
        }
        self.at += 1;
        while !self.line()?.starts_with('{') {
            let text = self.line()?;
            if let Some(threads) = text.strip_prefix(".maxntid") {
                body.kernel.max_threads = threads.split(',').map(|size| size.trim().parse::<u32>().ok()).product();
            } else if !text.starts_with(".minnctapersm") {
                return self.error(format!("directive {text}"));
            }
            self.at += 1;
        }
        let mut location = String::new();
        loop {
            let Line { number, text } = &self.lines[self.at];
            if let Some(place) = text.strip_prefix(".loc").filter(|place| place.starts_with(char::is_whitespace)) {
                location = self.location(place);
            } else if !text.starts_with(".pragma") {
                body.statements(*number, text, &location)?;
            }
            self.at += 1;
            if body.scopes.is_empty() {
                return body.finish();
            }
            self.line()?;
        }
    }

    /// `file:line`, and that of the call for inlined code.
    fn location(&self, text: &str) -> String {
        let place = |text: &str| {
            let mut words = text.split_whitespace().map(|word| word.trim_end_matches(',').parse::<u32>());
            let (Some(Ok(file)), Some(Ok(line))) = (words.next(), words.next()) else { return "?".to_owned() };
            format!("{}:{line}", self.files.get(&file).map_or("?", String::as_str))
        };
        match text.split_once("inlined_at") {
            Some((inner, outer)) => format!("{} from {}", place(inner), place(outer)),
            None => place(text),
        }
    }
}

/// `.align 4 .b8 name[16]` as name, alignment and bytes.
fn declaration(text: &str) -> Option<(String, usize, usize)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let ty = words.iter().find_map(|word| Type::parse(word.strip_prefix('.')?))?;
    let align = words.iter().position(|word| *word == ".align").map(|at| words.get(at + 1)?.parse().ok());
    let align = align.unwrap_or(Some(ty.bytes()))?;
    let name = words.last()?.trim_end_matches(';');
    match name.split_once('[') {
        Some((name, "]")) => Some((name.to_owned(), align, 0)),
        Some((name, count)) => {
            Some((name.to_owned(), align, ty.bytes() * count.trim_end_matches(']').parse::<usize>().ok()?))
        }
        None => Some((name.to_owned(), align, ty.bytes())),
    }
}

/// What a name stands for.
#[derive(Clone, Copy)]
enum Symbol {
    /// An offset: of a parameter, or of declared shared memory.
    Fixed(u64),
    /// The shared memory of the launch, which lies behind what is declared.
    Dynamic,
}

/// A kernel while its statements are read.
struct Body<'a> {
    kernel: Kernel,
    symbols: HashMap<String, Symbol>,
    module_shared: &'a [SharedSymbol],
    /// Names of registers; braces open scopes.
    scopes: Vec<HashMap<String, Register>>,
    labels: HashMap<String, usize>,
    constants: HashMap<u64, Register>,
    /// Instructions as they are written, decoded once all labels and sizes are known.
    pending: Vec<Pending>,
    /// Registers that hold the address of the launch's shared memory, with an offset.
    dynamic: Vec<Register>,
}

struct Pending {
    guard: Option<Guard>,
    opcode: String,
    operands: Vec<String>,
    parsed: Vec<Operand>,
    line: u32,
    source: String,
}

impl<'a> Body<'a> {
    fn new(name: String, module_shared: &'a [SharedSymbol]) -> Self {
        let kernel = Kernel {
            name,
            param_bytes: 0,
            shared_bytes: 0,
            max_threads: None,
            code: Vec::new(),
            widths: Vec::new(),
            constants: Vec::new(),
            specials: Vec::new(),
        };
        Self {
            kernel,
            symbols: HashMap::new(),
            module_shared,
            scopes: Vec::new(),
            labels: HashMap::new(),
            constants: HashMap::new(),
            pending: Vec::new(),
            dynamic: Vec::new(),
        }
    }

    /// The statements of one line: they end at `;`, labels at `:`, and braces are scopes.
    fn statements(&mut self, line: u32, text: &str, source: &str) -> Result<(), PtxError> {
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let label = rest.find(':').filter(|&end| rest[..end].chars().all(is_name));
            if let Some(inner) = rest.strip_prefix('{') {
                self.scopes.push(HashMap::new());
                rest = inner;
            } else if let Some(after) = rest.strip_prefix('}') {
                self.scopes.pop();
                rest = after;
            } else if let Some(end) = label {
                self.labels.insert(rest[..end].to_owned(), self.pending.len());
                rest = &rest[end + 1..];
            } else if let Some(end) = rest.find(';') {
                self.statement(rest[..end].trim(), line, source)
                    .map_err(|what| PtxError { line, what: format!("{what}: {}", rest[..end].trim()) })?;
                rest = &rest[end + 1..];
            } else {
                return Err(PtxError { line, what: format!("no `;` in {rest}") });
            }
            rest = rest.trim_start();
        }
        Ok(())
    }

    fn statement(&mut self, text: &str, line: u32, source: &str) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        if let Some(names) = text.strip_prefix(".reg") {
            return self.registers(names);
        }
        if let Some(declared) = text.strip_prefix(".shared") {
            let (name, align, bytes) = declaration(declared).ok_or("declaration")?;
            self.allocate_shared(name, align, bytes);
            return Ok(());
        }
        if text.starts_with('.') {
            return Err("directive".to_owned());
        }
        let (guard, text) = match text.strip_prefix('@') {
            None => (None, text),
            Some(guarded) => {
                let (name, text) = guarded.split_once(char::is_whitespace).ok_or("guard")?;
                let (negated, name) = name.strip_prefix('!').map_or((false, name), |name| (true, name));
                let predicate = self.lookup(name).ok_or("guard")?;
                (Some(Guard { predicate, negated }), text.trim())
            }
        };
        let (opcode, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let operands = split_operands(operands);
        let parsed = operands.iter().map(|text| self.operand(opcode, text)).collect::<Result<_, _>>()?;
        let opcode = opcode.to_owned();
        self.pending.push(Pending { guard, opcode, operands, parsed, line, source: source.to_owned() });
        Ok(())
    }

    /// `.b32 %r<10>` or `.pred p, q`.
    fn registers(&mut self, text: &str) -> Result<(), String> {
        let (ty, names) = text.trim().split_once(char::is_whitespace).ok_or("registers")?;
        let bits = ty.strip_prefix('.').and_then(Type::parse).ok_or("type")?.bits();
        for name in names.split(',').map(str::trim) {
            match name.split_once('<') {
                None => self.name_register(name.to_owned(), bits),
                Some((name, count)) => {
                    let count: usize = count.trim_end_matches('>').parse().map_err(|_| "count")?;
                    (0..count).for_each(|at| self.name_register(format!("{name}{at}"), bits));
                }
            }
        }
        Ok(())
    }

    fn name_register(&mut self, name: String, bits: u32) {
        let register = self.new_register(bits);
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, register);
        }
    }

    fn new_register(&mut self, bits: u32) -> Register {
        self.kernel.widths.push(bits);
        self.kernel.widths.len() - 1
    }

    fn allocate_shared(&mut self, name: String, align: usize, bytes: usize) -> u64 {
        let offset = self.kernel.shared_bytes.next_multiple_of(align);
        self.kernel.shared_bytes = offset + bytes;
        self.symbols.insert(name, Symbol::Fixed(offset as u64));
        offset as u64
    }

    fn lookup(&self, name: &str) -> Option<Register> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name)).copied()
    }

    /// What a symbol stands for; shared memory of the module is given out to the kernels that name it.
    fn symbol(&mut self, name: &str) -> Option<Symbol> {
        if let Some(symbol) = self.symbols.get(name) {
            return Some(*symbol);
        }
        let declared = self.module_shared.iter().find(|symbol| symbol.name == name)?;
        match declared.bytes {
            None => Some(Symbol::Dynamic),
            Some(bytes) => Some(Symbol::Fixed(self.allocate_shared(name.to_owned(), declared.align, bytes))),
        }
    }

    fn constant(&mut self, value: u64) -> Register {
        if let Some(&register) = self.constants.get(&value) {
            return register;
        }
        let register = self.new_register(64);
        self.kernel.constants.push((register, value));
        self.constants.insert(value, register);
        register
    }

    fn operand(&mut self, opcode: &str, text: &str) -> Result<Operand, String> {
        let unknown = || format!("operand {text}");
        // Where a label lies may not be known yet: `finish` fills it in.
        if opcode.starts_with("bra") {
            return Ok(Operand::Label(usize::MAX));
        }
        if let Some(inner) = text.strip_prefix('[') {
            return self.address(inner.trim_end_matches(']').trim()).ok_or_else(unknown);
        }
        if let Some(inner) = text.strip_prefix('{') {
            let mut registers = Vec::new();
            for name in inner.trim_end_matches('}').split(',').map(str::trim) {
                registers.push(if name == "_" { None } else { Some(self.value(name).ok_or_else(unknown)?) });
            }
            return Ok(Operand::Vector(registers));
        }
        if let Some((first, second)) = text.split_once('|') {
            let (first, second) = (self.lookup(first.trim()), self.lookup(second.trim()));
            return Ok(Operand::Pair(first.ok_or_else(unknown)?, second.ok_or_else(unknown)?));
        }
        self.value(text).map(Operand::Register).ok_or_else(unknown)
    }

    /// A register, a special one, a literal or the address of a symbol.
    fn value(&mut self, text: &str) -> Option<Register> {
        if let Some(register) = self.lookup(text) {
            return Some(register);
        }
        if let Some(name) = text.strip_prefix('%') {
            let special = special(name)?;
            if let Some((_, register)) = self.kernel.specials.iter().find(|(known, _)| *known == special) {
                return Some(*register);
            }
            let register = self.new_register(32);
            self.kernel.specials.push((special, register));
            return Some(register);
        }
        if let Some(value) = literal(text) {
            return Some(self.constant(value));
        }
        match self.symbol(text)? {
            Symbol::Fixed(offset) => Some(self.constant(offset)),
            Symbol::Dynamic => {
                let register = self.new_register(64);
                self.dynamic.push(register);
                Some(register)
            }
        }
    }

    fn address(&mut self, text: &str) -> Option<Operand> {
        let sign = text.find(['+', '-']).filter(|&at| at > 0);
        let (name, offset) = match sign {
            Some(at) => (text[..at].trim(), literal(text[at..].trim_start_matches('+').trim())? as i64),
            None => (text, 0),
        };
        if let Some(base) = self.lookup(name) {
            return Some(Operand::Address(Address { base: Some(base), offset }));
        }
        match self.symbol(name)? {
            Symbol::Fixed(start) => {
                Some(Operand::Address(Address { base: None, offset: offset.wrapping_add(start as i64) }))
            }
            Symbol::Dynamic => {
                let base = self.value(name)?;
                Some(Operand::Address(Address { base: Some(base), offset }))
            }
        }
    }

    /// Places what could not be placed before, and decodes.
    fn finish(mut self) -> Result<Kernel, PtxError> {
        let start = self.kernel.shared_bytes.next_multiple_of(16);
        if !self.dynamic.is_empty() {
            self.kernel.shared_bytes = start;
        }
        let dynamic = std::mem::take(&mut self.dynamic);
        self.kernel.constants.extend(dynamic.into_iter().map(|register| (register, start as u64)));
        for mut pending in std::mem::take(&mut self.pending) {
            let text = format!("{} {}", pending.opcode, pending.operands.join(", "));
            let error = |what: String| PtxError { line: pending.line, what: format!("{what}: {text}") };
            for (operand, name) in pending.parsed.iter_mut().zip(&pending.operands) {
                if let Operand::Label(target) = operand {
                    *target = *self.labels.get(name).ok_or_else(|| error("no such label".to_owned()))?;
                }
            }
            let op = table::decode(&self.kernel, &pending.opcode, &pending.parsed).map_err(error)?;
            let reads = op.reads();
            let Pending { guard, line, source, .. } = pending;
            self.kernel.code.push(Instruction { guard, op, line, source, text, reads });
        }
        Ok(self.kernel)
    }
}

fn is_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_' || letter == '$'
}

fn special(name: &str) -> Option<Special> {
    if name == "laneid" {
        return Some(Special::Lane);
    }
    let (name, axis) = name.split_once('.')?;
    let axis = ["x", "y", "z"].iter().position(|known| *known == axis)?;
    Some(match name {
        "tid" => Special::Thread(axis),
        "ntid" => Special::ThreadCount(axis),
        "ctaid" => Special::Block(axis),
        "nctaid" => Special::BlockCount(axis),
        _ => return None,
    })
}

/// The bits of a number: decimal or hexadecimal, `0f` and `0d` the bits of floats.
fn literal(text: &str) -> Option<u64> {
    if let Some(bits) = text.strip_prefix("0f").or(text.strip_prefix("0F")).or(text.strip_prefix("0d")) {
        return u64::from_str_radix(bits, 16).ok();
    }
    if let Some(bits) = text.strip_prefix("0D") {
        return u64::from_str_radix(bits, 16).ok();
    }
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let digits = digits.trim_end_matches('U');
    let value = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(if negative { value.wrapping_neg() } else { value })
}

/// Splits at commas outside of brackets.
fn split_operands(text: &str) -> Vec<String> {
    let (mut operands, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                operands.push(text[start..at].trim().to_owned());
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() {
        operands.push(text[start..].trim().to_owned());
    }
    operands
}
