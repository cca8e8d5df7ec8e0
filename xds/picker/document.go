package picker

import (
	"strconv"
	"unicode/utf8"
)

// readDocument reads the beginning of an inference's JSON into c: the members of
// "parameters", as far as they are there. What is no JSON is left to the gateway, which
// has the words for it.
// Source: the v2 protocol's inference request and its sequence extension.
func readDocument(b []byte, c *Call) {
	key := newDigest()
	defer func() { c.Key = key.sum() }()
	s := scanner{b: b}
	if !s.take('{') {
		key.add(b)
		return
	}
	for {
		name, ok := s.text()
		if !ok || !s.take(':') {
			break
		}
		s.blank()
		from := s.at
		if string(name) == "parameters" {
			ok = s.parameters(c)
		} else {
			ok = s.skip()
		}
		if string(name) != "id" { // nothing of the answer
			key.add(name)
			key.add(s.b[min(from, len(s.b)):min(s.at, len(s.b))])
		}
		if !ok || !s.take(',') {
			break
		}
	}
	key.add(s.b[min(s.at, len(s.b)):]) // tensors behind the JSON
}

// parameter takes one parameter of the request.
// Source: the sequence extension.
func (c *Call) parameter(name, text string, number uint64) {
	switch name {
	case "sequence_id":
		switch {
		case text != "":
			c.Sequence = sequenceText(text)
		case number != 0: // 0 is none
			c.Sequence = strconv.FormatUint(number, 10)
		}
	case "sequence_start":
		c.Start = number != 0
	case "sequence_end":
		c.End = number != 0
	}
}

// scanner walks JSON that may end anywhere. After anything that did not come whole it
// says false.
type scanner struct {
	b  []byte
	at int
}

func (s *scanner) blank() {
	for s.at < len(s.b) && (s.b[s.at] == ' ' || s.b[s.at] == '\n' || s.b[s.at] == '\t' || s.b[s.at] == '\r') {
		s.at++
	}
}

func (s *scanner) take(c byte) bool {
	s.blank()
	if s.at < len(s.b) && s.b[s.at] == c {
		s.at++
		return true
	}
	return false
}

// text reads a string; escapes are decoded as far as names and IDs of sequences have
// them.
func (s *scanner) text() ([]byte, bool) {
	if !s.take('"') {
		return nil, false
	}
	from, escaped := s.at, false
	for ; s.at < len(s.b); s.at++ {
		switch s.b[s.at] {
		case '\\':
			escaped = true
			s.at++
		case '"':
			raw := s.b[from:s.at]
			s.at++
			if !escaped {
				return raw, true
			}
			return unescape(raw), true
		}
	}
	return nil, false
}

// unescape decodes a string's escapes. Surrogates stand for nothing else here, so pairs
// become two replacement characters: equal strings stay equal.
func unescape(raw []byte) []byte {
	var out []byte
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' || i+1 == len(raw) {
			out = append(out, raw[i])
			continue
		}
		i++
		switch raw[i] {
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'u':
			if i+4 < len(raw) {
				if n, err := strconv.ParseUint(string(raw[i+1:i+5]), 16, 32); err == nil {
					out = utf8.AppendRune(out, rune(n))
				}
				i += 4
			}
		default:
			out = append(out, raw[i])
		}
	}
	return out
}

// word reads a number or a literal.
func (s *scanner) word() []byte {
	s.blank()
	from := s.at
	for s.at < len(s.b) {
		switch s.b[s.at] {
		case ',', '}', ']', ' ', '\n', '\t', '\r':
			return s.b[from:s.at]
		}
		s.at++
	}
	return nil // it may go on
}

// skip passes a value.
func (s *scanner) skip() bool {
	s.blank()
	if s.at >= len(s.b) {
		return false
	}
	switch s.b[s.at] {
	case '"':
		_, ok := s.text()
		return ok
	case '{', '[':
	default:
		return len(s.word()) > 0
	}
	depth := 0
	for s.at < len(s.b) {
		switch s.b[s.at] {
		case '"':
			if _, ok := s.text(); !ok {
				return false
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		s.at++
		if depth == 0 {
			return true
		}
	}
	return false
}

// parameters reads the object of a request's parameters.
func (s *scanner) parameters(c *Call) bool {
	if !s.take('{') {
		return s.skip()
	}
	if s.take('}') {
		return true
	}
	for {
		name, ok := s.text()
		if !ok || !s.take(':') {
			return false
		}
		s.blank()
		if s.at >= len(s.b) {
			return false
		}
		switch s.b[s.at] {
		case '"':
			v, ok := s.text()
			if !ok {
				return false
			}
			c.parameter(string(name), string(v), 0)
		case '{', '[':
			if !s.skip() {
				return false
			}
		default:
			v := string(s.word())
			if v == "" {
				return false
			}
			n, err := strconv.ParseUint(v, 10, 64)
			if v == "true" {
				n, err = 1, nil
			}
			if err == nil {
				c.parameter(string(name), "", n)
			}
		}
		switch {
		case s.take('}'):
			return true
		case !s.take(','):
			return false
		}
	}
}
