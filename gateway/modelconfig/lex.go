package modelconfig

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

type kind uint8

const (
	end kind = iota
	ident
	number
	text
	punct
)

type token struct {
	kind  kind
	at    int    // byte offset of its start
	until int    // byte offset behind it
	str   string // name, number as written, string unescaped, punctuation
}

func (t token) is(p string) bool { return t.kind == punct && t.str == p }

// describe names a token for messages.
func (t token) describe() string {
	switch t.kind {
	case end:
		return "the end of the file"
	case text:
		return "a string"
	}
	return fmt.Sprintf("%q", t.str)
}

// lexer cuts protobuf text format into tokens.
// Source: the text format specification, sections "Lexical Elements" to "Numeric Literals".
type lexer struct {
	src string
	pos int
}

// syntaxError is a fault that ends the parse: what follows can't be understood.
type syntaxError struct {
	at  int
	msg string
}

func (e *syntaxError) Error() string { return e.msg }

func (l *lexer) space() {
	for l.pos < len(l.src) {
		switch c := l.src[l.pos]; {
		case c == ' ' || c >= '\t' && c <= '\r':
			l.pos++
		case c == '#':
			if n := strings.IndexByte(l.src[l.pos:], '\n'); n >= 0 {
				l.pos += n
			} else {
				l.pos = len(l.src)
			}
		default:
			return
		}
	}
}

func (l *lexer) next() (token, error) {
	l.space()
	start := l.pos
	if start == len(l.src) {
		return token{kind: end, at: start, until: start}, nil
	}
	c := l.src[start]
	switch {
	case isLetter(c):
		l.pos = scan(l.src, start, func(c byte) bool { return isLetter(c) || isDigit(c) })
		return token{ident, start, l.pos, l.src[start:l.pos]}, nil
	case isDigit(c) || c == '.' && start+1 < len(l.src) && isDigit(l.src[start+1]):
		return l.number()
	case c == '"' || c == '\'':
		s, err := l.quoted(c)
		return token{text, start, l.pos, s}, err
	case strings.IndexByte("{}<>[]:,;-./", c) >= 0:
		l.pos++
		return token{punct, start, l.pos, l.src[start:l.pos]}, nil
	}
	r, _ := utf8.DecodeRuneInString(l.src[start:])
	msg := fmt.Sprintf("unexpected character %q", r)
	if strings.ContainsRune("“”„‘’«»", r) {
		msg += `; strings stand between plain " or '`
	}
	return token{}, &syntaxError{start, msg}
}

func (l *lexer) number() (token, error) {
	start := l.pos
	l.pos = scan(l.src, start, func(c byte) bool { return isLetter(c) || isDigit(c) || c == '.' })
	// An exponent's sign belongs to the number.
	if s := l.src[start:l.pos]; len(s) > 1 && !strings.HasPrefix(s, "0x") && (s[len(s)-1] == 'e' || s[len(s)-1] == 'E') &&
		l.pos < len(l.src) && (l.src[l.pos] == '+' || l.src[l.pos] == '-') {
		l.pos = scan(l.src, l.pos+1, func(c byte) bool { return isLetter(c) || isDigit(c) })
	}
	return token{number, start, l.pos, l.src[start:l.pos]}, nil
}

func (l *lexer) quoted(quote byte) (string, error) {
	start := l.pos
	var out []byte
	for i := start + 1; i < len(l.src); {
		switch c := l.src[i]; {
		case c == quote:
			l.pos = i + 1
			if !utf8.Valid(out) {
				return "", &syntaxError{start, "string is not valid UTF-8"}
			}
			return string(out), nil
		case c == '\n':
			return "", &syntaxError{start, "string is not closed before the end of its line"}
		case c == 0:
			return "", &syntaxError{i, "string contains a NUL byte"}
		case c == '\\':
			n, err := unescape(&out, l.src[i:])
			if err != nil {
				return "", &syntaxError{i, err.Error()}
			}
			i += n
		default:
			out = append(out, c)
			i++
		}
	}
	return "", &syntaxError{start, "string is not closed"}
}

// unescape decodes the escape sequence that s begins with and returns its length.
func unescape(out *[]byte, s string) (int, error) {
	if len(s) < 2 {
		return 0, fmt.Errorf("string is not closed")
	}
	const plain = `abfnrtv\'"?`
	if i := strings.IndexByte(plain, s[1]); i >= 0 {
		*out = append(*out, "\a\b\f\n\r\t\v\\'\"?"[i])
		return 2, nil
	}
	switch c := s[1]; {
	case c >= '0' && c <= '7':
		v, n := digits(s[1:], 3, 8)
		if v > 255 {
			return 0, fmt.Errorf("escape %s is more than a byte", s[:n+1])
		}
		*out = append(*out, byte(v))
		return n + 1, nil
	case c == 'x' || c == 'X':
		v, n := digits(s[2:], 2, 16)
		if n == 0 {
			return 0, fmt.Errorf(`escape \x without hexadecimal digits`)
		}
		*out = append(*out, byte(v))
		return n + 2, nil
	case c == 'u' || c == 'U':
		want := 4
		if c == 'U' {
			want = 8
		}
		v, n := digits(s[2:], want, 16)
		if n != want || v > utf8.MaxRune || !utf8.ValidRune(rune(v)) {
			return 0, fmt.Errorf(`escape \%c is no Unicode character of %d digits`, c, want)
		}
		*out = utf8.AppendRune(*out, rune(v))
		return n + 2, nil
	}
	return 0, fmt.Errorf("unknown escape sequence %q; a backslash is written \\\\", s[:2])
}

func digits(s string, most, base int) (value, n int) {
	for n < most && n < len(s) {
		d := strings.IndexByte("0123456789abcdef", s[n]|0x20)
		if d < 0 || d >= base || s[n] < '0' {
			break
		}
		value = value*base + d
		n++
	}
	return value, n
}

func scan(s string, i int, is func(byte) bool) int {
	for i < len(s) && is(s[i]) {
		i++
	}
	return i
}

func isLetter(c byte) bool { return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' }
func isDigit(c byte) bool  { return c >= '0' && c <= '9' }
