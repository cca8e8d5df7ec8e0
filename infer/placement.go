package infer

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// PlacementHeader is set by a mesh whose endpoint picker alone may say where sequences live.
// Callers' own values are taken away there (docs/0014-load-aware-routing.md).
const PlacementHeader = "x-sluice-placement"

// Unplaced is the value of PlacementHeader for a call of which the picker said nothing.
const Unplaced = "none"

// Placement is what the endpoint picker of a mesh said of a call's sequence. Each START that
// it places gets an epoch, a fencing token: a gateway continues a sequence only for calls
// whose epoch is not newer than the sequence's own. The zero value is that of a call of which
// the picker said nothing: it neither begins nor continues a sequence.
type Placement struct {
	// Key names the sequence to the picker; "": the picker named none.
	Key string
	// Epoch is that of the sequence's START, or the oldest one that the call may continue.
	Epoch uint64
	// Unknown says that the picker knows no such sequence.
	Unknown bool
	// Stream is not 0 for a stream's calls, whose sequences the picker does not see: they
	// belong to this stream. It is unique in the process.
	Stream uint64
	// Scope is the caller's part of the keys of a stream's sequences.
	Scope string
}

// PlacedSequence is a sequence that lives, with the key and the epoch of its START.
type PlacedSequence struct {
	Key   string
	Epoch uint64
}

// streams numbers the streams that have a Placement.
var streams atomic.Uint64

// unplaced is the Placement of all calls of which the picker said nothing.
var unplaced = &Placement{}

// ParsePlacement reads the value of PlacementHeader; "" is nil: there is no picker. What it
// can't read counts as Unplaced. The Placement does not refer to text. A value is one of
//
//	none
//	EPOCH KEY              of a call whose sequence the picker knows, or which begins it
//	unknown EPOCH KEY      of any other call of a sequence
//	stream SCOPE           of a stream; SCOPE is escaped as in a key
//	stream SCOPE EPOCH KEY of a stream whose headers name a sequence
func ParsePlacement(text string) *Placement {
	if text == "" {
		return nil
	}
	kind, rest, _ := strings.Cut(text, " ")
	p := &Placement{}
	switch kind {
	case Unplaced:
		return unplaced
	case "stream":
		scope, rest, more := strings.Cut(rest, " ")
		name, err := url.PathUnescape(scope)
		if err != nil {
			return unplaced
		}
		p.Stream, p.Scope = streams.Add(1), name
		if !more {
			return p
		}
		kind, rest, _ = strings.Cut(rest, " ")
		return p.read(kind, rest)
	case "unknown":
		p.Unknown = true
		kind, rest, _ = strings.Cut(rest, " ")
	}
	return p.read(kind, rest)
}

// read reads an epoch and a key.
func (p *Placement) read(epoch, key string) *Placement {
	n, err := strconv.ParseUint(epoch, 10, 64)
	if err != nil || key == "" {
		return unplaced
	}
	p.Epoch, p.Key = n, strings.Clone(key)
	return p
}

// String is the value of PlacementHeader.
func (p *Placement) String() string {
	named := strconv.FormatUint(p.Epoch, 10) + " " + p.Key
	switch {
	case p.Stream != 0 && p.Key == "":
		return "stream " + url.PathEscape(p.Scope)
	case p.Stream != 0:
		return "stream " + url.PathEscape(p.Scope) + " " + named
	case p.Key == "":
		return Unplaced
	case p.Unknown:
		return "unknown " + named
	}
	return named
}

// Of is the placement of one request: p itself, or that of a stream's request, whose sequence
// the request names.
func (p *Placement) Of(r *Request) Placement {
	if p.Stream == 0 {
		return *p
	}
	one := Placement{Key: SequenceKey(p.Scope, r.Model, r.Version, SequenceID(r.Correlation)), Stream: p.Stream}
	switch {
	case one.Key == p.Key: // the stream's headers name it
		one.Epoch, one.Stream = p.Epoch, 0
	case r.SequenceStart:
		one.Epoch = NewEpoch(0)
	}
	return one
}

// SequenceKey names a sequence among those of all gateways; id is what SequenceID gives.
func SequenceKey(scope, model, version, id string) string {
	return url.PathEscape(scope) + "/" + url.PathEscape(model) + "/" + url.PathEscape(version) + "/" + url.PathEscape(id)
}

// ParseSequenceKey takes a key apart; ok is false for what SequenceKey has not made.
func ParseSequenceKey(key string) (scope, model, version, id string, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 4 || len(key) > maxSequenceKey {
		return "", "", "", "", false
	}
	for i := range parts {
		text, err := url.PathUnescape(parts[i])
		if err != nil {
			return "", "", "", "", false
		}
		parts[i] = text
	}
	return parts[0], parts[1], parts[2], parts[3], true
}

// maxSequenceKey bounds a key, in bytes: each of its parts is a name, or shortened.
const maxSequenceKey = 4 << 10

// SequenceID is a correlation ID as keys have it: a number, or "s:" and a text.
func SequenceID(id Correlation) string {
	if id.Str == "" {
		return strconv.FormatUint(id.ID, 10)
	}
	return "s:" + ShortID(id.Str)
}

// maxID bounds the texts of sequences' IDs and callers in keys, in bytes.
const maxID = 128

// ShortID is a text that callers choose, as keys have it: of a long one its beginning and a
// hash of the whole.
func ShortID(text string) string {
	if len(text) > maxID {
		sum := sha256.Sum256([]byte(text))
		text = strings.ToValidUTF8(text[:maxID/2], "") + "…" + hex.EncodeToString(sum[:16])
	}
	return text
}

// lastEpoch is the newest that NewEpoch has made.
var lastEpoch atomic.Uint64

// NewEpoch is an epoch that is newer than after, and than all that this process made before:
// the wall clock in ns since 1970. Those of several processes are ordered as far as their
// clocks agree.
func NewEpoch(after uint64) uint64 {
	for {
		last := max(lastEpoch.Load(), after)
		next := max(last+1, uint64(time.Now().UnixNano()))
		if before := lastEpoch.Load(); before <= last && lastEpoch.CompareAndSwap(before, next) {
			return next
		}
	}
}
