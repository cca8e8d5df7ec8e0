package json

import "strconv"

// MaxDepth is how deep objects and arrays may nest.
// Source: the limit of the original server from 2.7x on.
const MaxDepth = 100

// Error is a fault of the document.
type Error struct {
	Text   string
	Offset int  // bytes from the document's start; only for Syntax
	Syntax bool // not JSON; else a value of the wrong type or out of range
}

// Error is the text, with the offset where the document is no JSON.
func (e *Error) Error() string {
	if e.Syntax {
		return e.Text + " at " + strconv.Itoa(e.Offset)
	}
	return e.Text
}

// Texts of syntax faults.
const (
	textEmpty    = "The document is empty."
	textRoot     = "The document root must not be followed by other values."
	textValue    = "Invalid value."
	textName     = "Missing a name for object member."
	textColon    = "Missing a colon after a name of object member."
	textMember   = "Missing a comma or '}' after an object member."
	textElement  = "Missing a comma or ']' after an array element."
	textHex      = "Incorrect hex digit after \\u escape in string."
	textPair     = "The surrogate pair in string is invalid."
	textEscape   = "Invalid escape character in string."
	textQuote    = "Missing a closing quotation mark in string."
	textBig      = "Number too big to be stored in double."
	textFraction = "Miss fraction part in number."
	textExponent = "Miss exponent in number."
)

// TooDeep is the text of a document that nests deeper than MaxDepth.
const TooDeep = "The values nest deeper than the limit of 100."

// Kind is what the next value is, as far as its first byte tells.
type Kind uint8

// The kinds of values. None is the end of the document or no value.
const (
	None Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

// Scanner reads one document. The zero value is ready for Reset.
type Scanner struct {
	data  []byte
	pos   int
	depth int
	first bool   // the next Key or Next follows the opening bracket
	buf   []byte // strings that had escapes, one behind the other
	long  []byte // a number that was too long for strconv
}

// keepBuf is the most memory of unescaped strings that is used again.
const keepBuf = 64 << 10

// Reset points the scanner at a document. Strings of the last one become invalid.
func (s *Scanner) Reset(data []byte) {
	s.data, s.pos, s.depth, s.first, s.buf = data, 0, 0, false, s.buf[:0]
	if cap(s.buf) > keepBuf {
		s.buf = nil
	}
	if len(data) >= 3 && data[0] == 0xef && data[1] == 0xbb && data[2] == 0xbf {
		s.pos = 3
	}
}

// Mark is a place to come back to.
type Mark struct {
	pos, depth int
	first      bool
}

// Mark names where the scanner stands.
func (s *Scanner) Mark() Mark { return Mark{s.pos, s.depth, s.first} }

// Seek goes back to, or again ahead to, a place in the same document.
func (s *Scanner) Seek(m Mark) { s.pos, s.depth, s.first = m.pos, m.depth, m.first }

func (s *Scanner) syntax(text string, at int) error {
	return &Error{Text: text, Offset: at, Syntax: true}
}

// at is the byte at i, 0 past the end: a NUL ends the document.
func (s *Scanner) at(i int) byte {
	if i < len(s.data) {
		return s.data[i]
	}
	return 0
}

// space skips white space and returns the byte that follows.
func (s *Scanner) space() byte {
	i := s.pos
	for i < len(s.data) {
		c := s.data[i]
		if c > ' ' || (c != ' ' && c != '\n' && c != '\r' && c != '\t') {
			s.pos = i
			return c
		}
		i++
	}
	s.pos = i
	return 0
}

// Empty is the fault of a document without a value, else nil.
func (s *Scanner) Empty() error {
	if s.space() == 0 {
		return s.syntax(textEmpty, s.pos)
	}
	return nil
}

// Kind looks at the next value without reading it.
func (s *Scanner) Kind() Kind {
	switch c := s.space(); {
	case c == '{':
		return Object
	case c == '[':
		return Array
	case c == '"':
		return String
	case c == 't', c == 'f':
		return Bool
	case c == 'n':
		return Null
	case c == '-', c >= '0' && c <= '9', c == 'N', c == 'I':
		return Number
	}
	return None
}

// End says whether nothing follows the document's value.
func (s *Scanner) End() error {
	if s.space() != 0 {
		return s.syntax(textRoot, s.pos)
	}
	return nil
}

// Open enters the object or array that Kind announced.
func (s *Scanner) Open() error {
	s.space()
	if s.depth >= MaxDepth {
		return s.syntax(TooDeep, s.pos)
	}
	s.depth++
	s.pos++
	s.first = true
	return nil
}

// Key gives the next member's name of the object that was entered and stands before
// its value; ok is false when the object has ended. The name is valid until Reset.
func (s *Scanner) Key() (key []byte, ok bool, err error) {
	c := s.space()
	if c == '}' {
		s.close()
		return nil, false, nil
	}
	if !s.first {
		if c != ',' {
			return nil, false, s.syntax(textMember, s.pos)
		}
		s.pos++
		c = s.space()
	}
	s.first = false
	if c != '"' {
		return nil, false, s.syntax(textName, s.pos)
	}
	if key, err = s.Str(); err != nil {
		return nil, false, err
	}
	if s.space() != ':' {
		return nil, false, s.syntax(textColon, s.pos)
	}
	s.pos++
	return key, true, nil
}

func (s *Scanner) close() {
	s.pos++
	s.depth--
	s.first = false
}

// Next stands before the next element of the array that was entered; false when the
// array has ended.
func (s *Scanner) Next() (bool, error) {
	c := s.space()
	if c == ']' {
		s.close()
		return false, nil
	}
	if !s.first {
		if c != ',' {
			return false, s.syntax(textElement, s.pos)
		}
		s.pos++
		if c = s.space(); c == ']' {
			return false, s.syntax(textValue, s.pos)
		}
	}
	s.first = false
	return true, nil
}

// Skip reads over one value of any kind, checking it.
func (s *Scanner) Skip() error {
	base := s.depth
	var arrays [MaxDepth + 1]bool // by depth: is it an array
	for {
		switch s.Kind() {
		case Object, Array:
			arrays[min(s.depth+1, MaxDepth)] = s.data[s.pos] == '['
			if err := s.Open(); err != nil {
				return err
			}
		default:
			if err := s.scalar(); err != nil {
				return err
			}
		}
		for {
			if s.depth == base {
				return nil
			}
			ok, err := s.step(arrays[s.depth])
			if err != nil {
				return err
			}
			if ok {
				break
			}
		}
	}
}

func (s *Scanner) step(array bool) (bool, error) {
	if array {
		return s.Next()
	}
	_, ok, err := s.Key()
	return ok, err
}

func (s *Scanner) scalar() error {
	switch s.Kind() {
	case String:
		return s.skipString()
	case Number:
		n, err := s.number()
		if err == nil && !n.small() {
			_, err = s.float(n)
		}
		return err
	case Bool:
		_, err := s.Bool()
		return err
	case Null:
		return s.word("null")
	}
	return s.syntax(textValue, s.pos)
}

// Bool reads true or false. The caller has asked Kind.
func (s *Scanner) Bool() (bool, error) {
	if s.space() == 't' {
		return true, s.word("true")
	}
	return false, s.word("false")
}

// word reads the letters of a literal; the fault stands at the first that differs.
func (s *Scanner) word(w string) error {
	for i := range len(w) {
		if s.at(s.pos) != w[i] {
			return s.syntax(textValue, s.pos)
		}
		s.pos++
	}
	return nil
}
