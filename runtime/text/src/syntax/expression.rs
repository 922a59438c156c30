//! Blocks and expressions, by the rules of jinja2's parser.

use super::tokens::Token;

/// Functions of ours that operators and their like become.
pub(crate) mod names {
    pub(crate) const TEXT: &str = "__text";
    pub(crate) const SUM: &str = "__sum";
    pub(crate) const COMPARE: &str = "__compare";
    pub(crate) const SIGN: &str = "__sign";
    pub(crate) const TUPLE: &str = "__tuple";
    pub(crate) const DICT: &str = "__dict";
    pub(crate) const VALUE: &str = "__value";
    pub(crate) const ITERATE: &str = "__iterate";
    pub(crate) const ATTRIBUTE: &str = "__attribute";
    pub(crate) const ITEM: &str = "__item";
    pub(crate) const SLICE: &str = "__slice";
    pub(crate) const METHOD: &str = "__method";
    pub(crate) const CALL: &str = "__call";
}
use names::{ATTRIBUTE, CALL, COMPARE, DICT, ITEM, ITERATE, METHOD, SIGN, SLICE, SUM, TEXT, TUPLE, VALUE};

/// Expressions inside each other; the library takes 150 of its own.
const DEEPEST: usize = 70;

/// An expression, said in the library's words.
struct Node {
    code: String,
    is: Is,
}

#[derive(PartialEq)]
enum Is {
    /// A literal, of which the library would make a bool with `and`.
    Literal,
    Name,
    /// An attribute: of what, and which.
    Attribute(String, String),
    Other,
}

impl Node {
    fn other(code: String) -> Self {
        Self { code, is: Is::Other }
    }
}

type Read<T> = Result<T, String>;

pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    pub(super) fn new(tokens: Vec<Token>) -> Self {
        Self { tokens, at: 0, depth: 0 }
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn next_is(&self, ahead: usize, mark: &str) -> bool {
        match self.tokens.get(self.at + ahead) {
            Some(Token::Mark(found)) => *found == mark,
            Some(Token::Name(found)) => found == mark,
            _ => false,
        }
    }

    fn skip(&mut self, mark: &str) -> bool {
        let is = self.next_is(0, mark);
        self.at += usize::from(is);
        is
    }

    fn unexpected<T>(&self) -> Read<T> {
        Err(match self.peek() {
            None => "it ends where something is missing".into(),
            Some(Token::Name(name)) => format!("`{name}` was not expected"),
            Some(Token::Mark(mark)) => format!("`{mark}` was not expected"),
            Some(Token::Text(text)) => format!("the text {text:?} was not expected"),
            Some(Token::Integer(_) | Token::Float(_)) => "a number was not expected".into(),
        })
    }

    fn expect(&mut self, mark: &str) -> Read<()> {
        if self.skip(mark) { Ok(()) } else { self.unexpected() }
    }

    fn name(&mut self) -> Read<String> {
        let Some(Token::Name(name)) = self.peek().cloned() else { return self.unexpected() };
        self.at += 1;
        Ok(name)
    }

    fn ended<T>(&self, value: T) -> Read<T> {
        if self.at == self.tokens.len() { Ok(value) } else { self.unexpected() }
    }

    /// What stands in `{{ }}`.
    pub(super) fn output(&mut self) -> Read<String> {
        let code = self.tuple(true)?.code;
        self.ended(code)
    }

    /// What stands in `{% %}`: one block, or several.
    pub(super) fn block(&mut self) -> Read<Vec<String>> {
        let tag = self.name()?;
        let code = match tag.as_str() {
            "if" | "elif" => format!("{tag} {}", self.tuple(false)?.code),
            "for" => {
                let targets = self.targets("in")?;
                self.expect("in")?;
                let over = self.tuple(false)?.code;
                let mut code = format!("for {targets} in {ITERATE}({over})");
                if self.skip("if") {
                    code += &format!(" if {}", self.expression()?.code);
                }
                code + if self.skip("recursive") { " recursive" } else { "" }
            }
            "set" => {
                let targets = self.targets("=")?;
                if self.skip("=") {
                    format!("set {targets} = {}", self.tuple(true)?.code)
                } else {
                    format!("set {targets}{}", self.filters(String::new())?)
                }
            }
            "macro" => {
                let name = self.name()?;
                let signature = self.signature()?;
                self.ended(())?;
                // Those of more than the signature has are refused.
                return Ok(vec![
                    format!("macro {name}{signature}"),
                    format!("set varargs = {TUPLE}([])"),
                    format!("set kwargs = {DICT}([])"),
                ]);
            }
            "call" => {
                let signature = if self.next_is(0, "(") { self.signature()? } else { String::new() };
                format!("call{signature} {}", self.expression()?.code)
            }
            "filter" => {
                let name = self.name()?;
                let arguments = if self.skip("(") { format!("({})", self.arguments()?) } else { String::new() };
                self.filters(format!("filter {name}{arguments}"))?
            }
            "with" => {
                let mut all = Vec::new();
                while self.peek().is_some() {
                    if !all.is_empty() {
                        self.expect(",")?;
                    }
                    let targets = self.targets("=")?;
                    self.expect("=")?;
                    all.push(format!("{targets} = {}", self.expression()?.code));
                }
                format!("with {}", all.join(", "))
            }
            "autoescape" => {
                if !(self.skip("false") || self.skip("False")) {
                    return Err("only `autoescape false` is known".into());
                }
                "autoescape false".into()
            }
            "generation" => "with".into(),
            "endgeneration" => "endwith".into(),
            "block" => format!("block {}", self.name()?),
            "endblock" => {
                let _ = self.name();
                tag
            }
            "else" | "endif" | "endfor" | "endset" | "endmacro" | "endcall" | "endfilter" | "endwith"
            | "endautoescape" | "break" | "continue" => tag,
            other => return Err(format!("the tag `{other}` is not known")),
        };
        self.ended(vec![code])
    }

    /// What is assigned to, up to a mark.
    fn targets(&mut self, until: &str) -> Read<String> {
        let mut code = String::new();
        while !self.next_is(0, until) && !self.next_is(0, "|") {
            match self.peek() {
                None if !code.is_empty() => break,
                Some(Token::Name(name)) => code += name,
                Some(Token::Mark(mark @ ("," | "(" | ")" | "."))) => code += mark,
                _ => return self.unexpected(),
            }
            self.at += 1;
        }
        Ok(code)
    }

    /// `(a, b=1)` of a macro.
    fn signature(&mut self) -> Read<String> {
        self.expect("(")?;
        let mut all = Vec::new();
        while !self.skip(")") {
            if !all.is_empty() {
                self.expect(",")?;
            }
            let name = self.name()?;
            all.push(if self.skip("=") { format!("{name}={}", self.expression()?.code) } else { name });
        }
        Ok(format!("({})", all.join(", ")))
    }

    /// One expression deeper.
    fn deeper(&mut self, read: impl FnOnce(&mut Self) -> Read<Node>) -> Read<Node> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("expressions stand more than {DEEPEST} deep in each other"));
        }
        let node = read(self);
        self.depth -= 1;
        node
    }

    /// An expression, or a tuple without brackets.
    fn tuple(&mut self, with_condition: bool) -> Read<Node> {
        let read = |parser: &mut Self| if with_condition { parser.expression() } else { parser.or() };
        let first = read(self)?;
        if !self.next_is(0, ",") {
            return Ok(first);
        }
        let mut items = vec![first.code];
        while self.skip(",") {
            if self.peek().is_none() || ["recursive", "if", ")"].into_iter().any(|end| self.next_is(0, end)) {
                break;
            }
            items.push(read(self)?.code);
        }
        Ok(Node::other(format!("{TUPLE}([{}])", items.join(", "))))
    }

    /// `a if b else c`.
    fn expression(&mut self) -> Read<Node> {
        self.deeper(|parser| {
            let mut value = parser.or()?;
            while parser.skip("if") {
                let condition = parser.or()?.code;
                let other =
                    if parser.skip("else") { format!(" else {}", parser.expression()?.code) } else { String::new() };
                value = Node::other(format!("({} if {condition}{other})", value.code));
            }
            Ok(value)
        })
    }

    fn or(&mut self) -> Read<Node> {
        self.logical("or", Self::and)
    }

    fn and(&mut self) -> Read<Node> {
        self.logical("and", Self::not)
    }

    fn logical(&mut self, word: &str, read: fn(&mut Self) -> Read<Node>) -> Read<Node> {
        let first = read(self)?;
        if !self.next_is(0, word) {
            return Ok(first);
        }
        let value = |node: Node| if node.is == Is::Literal { format!("{VALUE}({})", node.code) } else { node.code };
        let mut all = vec![value(first)];
        while self.skip(word) {
            all.push(value(read(self)?));
        }
        Ok(Node::other(format!("({})", all.join(&format!(" {word} ")))))
    }

    fn not(&mut self) -> Read<Node> {
        if self.skip("not") {
            return self.deeper(|parser| Ok(Node::other(format!("(not {})", parser.not()?.code))));
        }
        let first = self.sum()?;
        let (mut operators, mut operands) = (Vec::new(), vec![first]);
        loop {
            let operator = ["==", "!=", "<=", ">=", "<", ">", "in"].into_iter().find(|mark| self.skip(mark));
            let operator = match operator {
                Some(operator) => operator,
                None if self.next_is(0, "not") && self.next_is(1, "in") => {
                    self.at += 2;
                    "not in"
                }
                None => break,
            };
            operators.push(operator);
            operands.push(self.sum()?);
        }
        Ok(listed(COMPARE, &operators, operands))
    }

    /// Operands of one of these operators, from left to right.
    fn chain(&mut self, marks: &[&'static str], read: fn(&mut Self) -> Read<Node>) -> Read<Node> {
        let (mut operators, mut operands) = (Vec::new(), vec![read(self)?]);
        while let Some(mark) = marks.iter().find(|mark| self.skip(mark)) {
            operators.push(*mark);
            operands.push(read(self)?);
        }
        Ok(listed(SUM, &operators, operands))
    }

    fn sum(&mut self) -> Read<Node> {
        self.chain(&["+", "-"], Self::text)
    }

    fn text(&mut self) -> Read<Node> {
        let first = self.product()?;
        if !self.next_is(0, "~") {
            return Ok(first);
        }
        let mut all = vec![first.code];
        while self.skip("~") {
            all.push(self.product()?.code);
        }
        Ok(Node::other(format!("{TEXT}([{}])", all.join(", "))))
    }

    fn product(&mut self) -> Read<Node> {
        self.chain(&["*", "//", "/", "%"], Self::power)
    }

    fn power(&mut self) -> Read<Node> {
        self.chain(&["**"], |parser| parser.unary(true))
    }

    fn unary(&mut self, with_filters: bool) -> Read<Node> {
        let sign = ["-", "+"].into_iter().find(|sign| self.skip(sign));
        let node = match sign {
            Some(sign) => {
                let node = self.deeper(|parser| parser.unary(false))?;
                Node::other(format!("{SIGN}('{sign}', {})", node.code))
            }
            None => self.primary()?,
        };
        let node = self.postfix(node)?;
        if with_filters { self.filtered(node) } else { Ok(node) }
    }

    fn primary(&mut self) -> Read<Node> {
        let Some(token) = self.peek().cloned() else { return self.unexpected() };
        self.at += 1;
        let literal = |code: String| Ok(Node { code, is: Is::Literal });
        match token {
            Token::Name(name) => match name.as_str() {
                "true" | "True" => literal("true".into()),
                "false" | "False" => literal("false".into()),
                "none" | "None" => literal("none".into()),
                "and" | "or" | "not" | "in" | "is" | "if" | "else" | "elif" => {
                    self.at -= 1;
                    self.unexpected()
                }
                _ => Ok(Node { code: name, is: Is::Name }),
            },
            Token::Text(mut text) => {
                while let Some(Token::Text(more)) = self.peek() {
                    text += more;
                    self.at += 1;
                }
                literal(quoted(&text))
            }
            Token::Integer(number) => literal(number.to_string()),
            Token::Float(number) if number.is_finite() => literal(format!("{number:?}")),
            Token::Float(_) => Ok(Node::other(format!("{SUM}('*', [1e300, 1e300])"))),
            Token::Mark("(") => {
                if self.skip(")") {
                    return Ok(Node::other(format!("{TUPLE}([])")));
                }
                let node = self.tuple(true)?;
                self.expect(")")?;
                // In brackets an attribute is called as what it is.
                Ok(node)
            }
            Token::Mark("[") => {
                let mut items = Vec::new();
                while !self.skip("]") {
                    if !items.is_empty() {
                        self.expect(",")?;
                        if self.skip("]") {
                            break;
                        }
                    }
                    items.push(self.expression()?.code);
                }
                literal(format!("[{}]", items.join(", ")))
            }
            Token::Mark("{") => {
                let mut items = Vec::new();
                while !self.skip("}") {
                    if !items.is_empty() {
                        self.expect(",")?;
                        if self.skip("}") {
                            break;
                        }
                    }
                    let key = self.expression()?.code;
                    self.expect(":")?;
                    items.extend([key, self.expression()?.code]);
                }
                Ok(Node::other(format!("{DICT}([{}])", items.join(", "))))
            }
            Token::Mark(_) => {
                self.at -= 1;
                self.unexpected()
            }
        }
    }

    /// Attributes, items and calls.
    fn postfix(&mut self, mut node: Node) -> Read<Node> {
        for deep in 0.. {
            if deep > DEEPEST {
                return Err(format!("more than {DEEPEST} attributes, items or calls follow each other"));
            }
            if self.skip(".") {
                node = match self.peek().cloned() {
                    Some(Token::Name(name)) => {
                        let code = format!("{ATTRIBUTE}({}, '{name}')", node.code);
                        Node { is: Is::Attribute(node.code, name), code }
                    }
                    Some(Token::Integer(place)) => Node::other(format!("{ITEM}({}, {place})", node.code)),
                    _ => return self.unexpected(),
                };
                self.at += 1;
            } else if self.skip("[") {
                node = self.subscript(&node.code)?;
            } else if self.next_is(0, "(") {
                node = self.call(node)?;
            } else {
                break;
            }
        }
        Ok(node)
    }

    fn subscript(&mut self, of: &str) -> Read<Node> {
        let mut keys = Vec::new();
        while !self.skip("]") {
            if !keys.is_empty() {
                self.expect(",")?;
            }
            let mut parts = vec![None];
            while !self.next_is(0, "]") && !self.next_is(0, ",") {
                if self.skip(":") {
                    parts.push(None);
                } else {
                    parts.pop();
                    parts.push(Some(self.expression()?.code));
                    if !["]", ",", ":"].into_iter().any(|mark| self.next_is(0, mark)) {
                        return self.unexpected();
                    }
                }
            }
            keys.push(parts);
        }
        let none = || "none".to_owned();
        match &mut keys[..] {
            [parts] => match &mut parts[..] {
                [Some(key)] => Ok(Node::other(format!("{ITEM}({of}, {key})"))),
                [_, _] | [_, _, _] => {
                    parts.resize(3, None);
                    let parts: Vec<String> = parts.iter_mut().map(|part| part.take().unwrap_or_else(none)).collect();
                    Ok(Node::other(format!("{SLICE}({of}, {})", parts.join(", "))))
                }
                _ => self.unexpected(),
            },
            _ => Err("an item of several keys is not known".into()),
        }
    }

    fn call(&mut self, node: Node) -> Read<Node> {
        self.expect("(")?;
        let arguments = self.arguments()?;
        let behind = if arguments.is_empty() { String::new() } else { format!(", {arguments}") };
        Ok(Node::other(match node.is {
            Is::Name if node.code == "loop" => format!("loop({ITERATE}({arguments}))"),
            Is::Name => format!("{}({arguments})", node.code),
            Is::Attribute(of, name) if of == "self" => format!("self.{name}({arguments})"),
            Is::Attribute(of, name) => format!("{METHOD}({of}, '{name}'{behind})"),
            _ => format!("{CALL}({}{behind})", node.code),
        }))
    }

    /// The arguments of a call, whose bracket is open.
    fn arguments(&mut self) -> Read<String> {
        let mut all = Vec::new();
        while !self.skip(")") {
            if !all.is_empty() {
                self.expect(",")?;
                if self.skip(")") {
                    break;
                }
            }
            let before = if self.skip("**") {
                "**".into()
            } else if self.skip("*") {
                "*".into()
            } else if self.next_is(1, "=") {
                let name = self.name()?;
                self.at += 1;
                format!("{name}=")
            } else {
                String::new()
            };
            all.push(before + &self.expression()?.code);
        }
        Ok(all.join(", "))
    }

    /// `| name(arguments)`, as often as it stands there.
    fn filters(&mut self, mut code: String) -> Read<String> {
        while self.skip("|") {
            let name = self.name()?;
            code += &format!(" | {name}");
            if self.skip("(") {
                code += &format!("({})", self.arguments()?);
            }
        }
        Ok(code)
    }

    /// Filters, tests and calls.
    fn filtered(&mut self, mut node: Node) -> Read<Node> {
        for deep in 0.. {
            if deep > DEEPEST {
                return Err(format!("more than {DEEPEST} filters and tests follow each other"));
            }
            if self.next_is(0, "|") {
                node = Node::other(format!("({})", self.filters(node.code)?));
            } else if self.skip("is") {
                let not = if self.skip("not") { "not " } else { "" };
                let name = self.name()?;
                let arguments = if self.skip("(") {
                    format!("({})", self.arguments()?)
                } else if self.begins_an_argument() {
                    let argument = self.primary()?;
                    format!("({})", self.postfix(argument)?.code)
                } else {
                    String::new()
                };
                node = Node::other(format!("({} is {not}{name}{arguments})", node.code));
            } else if self.next_is(0, "(") {
                node = self.call(node)?;
            } else {
                break;
            }
        }
        Ok(node)
    }

    /// Whether behind a test's name its argument stands, without brackets.
    fn begins_an_argument(&self) -> bool {
        match self.peek() {
            Some(Token::Name(name)) => {
                !["else", "or", "and", "is", "if", "in", "not", "recursive"].contains(&name.as_str())
            }
            Some(Token::Text(_) | Token::Integer(_) | Token::Float(_)) => true,
            Some(Token::Mark(mark)) => ["[", "{"].contains(mark),
            None => false,
        }
    }
}

/// A function that takes its operators, and its operands as a list, of which there may be very many.
fn listed(function: &str, operators: &[&str], mut operands: Vec<Node>) -> Node {
    if operators.is_empty() {
        return operands.pop().unwrap_or_else(|| Node::other(String::new()));
    }
    let all: Vec<String> = operands.into_iter().map(|node| node.code).collect();
    Node::other(format!("{function}('{}', [{}])", operators.join(","), all.join(", ")))
}

/// A text as a literal of the library's.
fn quoted(text: &str) -> String {
    let mut out = String::from("'");
    for character in text.chars() {
        match character {
            '\\' | '\'' => out.extend(['\\', character]),
            // No line begins in it.
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            other => out.push(other),
        }
    }
    out + "'"
}
