package json

import "unicode/utf8"

// Str reads a string. The caller has asked Kind, or stands at the quotation mark. The
// bytes are a view on the document, or on the scanner's own memory where there were
// escapes; both are valid until Reset. They need not be UTF-8.
func (s *Scanner) Str() ([]byte, error) {
	s.space()
	start := s.pos + 1
	i := start
	for i < len(s.data) {
		c := s.data[i]
		if c == '"' {
			s.pos = i + 1
			return s.data[start:i:i], nil
		}
		if c == '\\' {
			from := len(s.buf)
			buf, err := s.unescape(s.buf, start)
			s.buf = buf
			return buf[from:len(buf):len(buf)], err
		}
		if c < ' ' {
			return nil, s.control(i)
		}
		i++
	}
	return nil, s.syntax(textQuote, i)
}

// AppendStr reads a string as Str does and appends its bytes to dst.
func (s *Scanner) AppendStr(dst []byte) ([]byte, error) {
	s.space()
	start := s.pos + 1
	for i := start; i < len(s.data); i++ {
		c := s.data[i]
		if c == '"' {
			s.pos = i + 1
			return append(dst, s.data[start:i]...), nil
		}
		if c == '\\' || c < ' ' {
			break
		}
	}
	return s.unescape(dst, start)
}

func (s *Scanner) skipString() error {
	i := s.pos + 1
	for i < len(s.data) {
		c := s.data[i]
		if c == '"' {
			s.pos = i + 1
			return nil
		}
		if c == '\\' {
			_, n, err := s.escape(i)
			if err != nil {
				return err
			}
			i += n
			continue
		}
		if c < ' ' {
			return s.control(i)
		}
		i++
	}
	return s.syntax(textQuote, i)
}

func (s *Scanner) control(i int) error {
	if s.data[i] == 0 {
		return s.syntax(textQuote, i)
	}
	return s.syntax(textEscape, i)
}

func (s *Scanner) unescape(dst []byte, i int) ([]byte, error) {
	from := i
	for i < len(s.data) {
		c := s.data[i]
		switch {
		case c == '"':
			dst = append(dst, s.data[from:i]...)
			s.pos = i + 1
			return dst, nil
		case c == '\\':
			dst = append(dst, s.data[from:i]...)
			r, n, err := s.escape(i)
			if err != nil {
				return dst, err
			}
			dst = appendRune(dst, r)
			i += n
			from = i
		case c < ' ':
			return dst, s.control(i)
		default:
			i++
		}
	}
	return dst, s.syntax(textQuote, i)
}

// escape decodes the escape at i: its rune and how many bytes it took.
func (s *Scanner) escape(i int) (r rune, n int, err error) {
	switch c := s.at(i + 1); c {
	case '"', '\\', '/':
		return rune(c), 2, nil
	case 'b':
		return '\b', 2, nil
	case 'f':
		return '\f', 2, nil
	case 'n':
		return '\n', 2, nil
	case 'r':
		return '\r', 2, nil
	case 't':
		return '\t', 2, nil
	case 'u':
	default:
		return 0, 0, s.syntax(textEscape, i)
	}
	r, ok := s.hex4(i + 2)
	if !ok {
		return 0, 0, s.syntax(textHex, i)
	}
	if r < 0xd800 || r > 0xdbff {
		return r, 6, nil
	}
	if s.at(i+6) != '\\' || s.at(i+7) != 'u' {
		return 0, 0, s.syntax(textPair, i)
	}
	low, ok := s.hex4(i + 8)
	if !ok {
		return 0, 0, s.syntax(textHex, i)
	}
	if low < 0xdc00 || low > 0xdfff {
		return 0, 0, s.syntax(textPair, i)
	}
	return (r-0xd800)<<10 + (low - 0xdc00) + 0x10000, 12, nil
}

func (s *Scanner) hex4(i int) (rune, bool) {
	var r rune
	for k := range 4 {
		c := s.at(i + k)
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// appendRune is utf8.AppendRune but keeps a low surrogate that stands alone, as the
// original does, so that such a string comes back as it was sent.
func appendRune(dst []byte, r rune) []byte {
	if r >= 0xdc00 && r <= 0xdfff {
		return append(dst, 0xe0|byte(r>>12), 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
	}
	return utf8.AppendRune(dst, r)
}
