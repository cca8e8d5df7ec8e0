package cache

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
)

// block is how much of a long text one NH hash takes in.
const block = 1024

// Hasher makes the keys of one process. Long texts are first compressed 32 to 1 by NH,
// the universal hash of UMAC (Black, Halevi, Krawczyk, Krovetz, Rogaway, 1999), with
// 64-bit words and a Toeplitz key for two rounds: two blocks of one length that differ
// have one hash with a probability of 2^-128, whoever chose them, as long as they don't
// know the key. SHA-256 is taken over the results. So a wrong hit needs a collision of
// SHA-256 or 128 bits of luck, and a long input costs a fraction of SHA-256's time.
type Hasher struct {
	key [block/8 + 2]uint64
}

// NewHasher makes a Hasher with a fresh secret.
func NewHasher() *Hasher {
	h := &Hasher{}
	var raw [len(h.key) * 8]byte
	rand.Read(raw[:])
	for i := range h.key {
		h.key[i] = binary.LittleEndian.Uint64(raw[8*i:])
	}
	return h
}

// compress appends the NH hashes of p's blocks to b. The last block counts as if zeros
// followed; its length must be told apart by who calls.
func (h *Hasher) compress(b, p []byte) []byte {
	for len(p) >= block {
		b = h.nh(b, p[:block])
		p = p[block:]
	}
	if len(p) > 0 {
		var last [block]byte
		n := (copy(last[:], p) + 15) &^ 15
		b = h.nh(b, last[:n])
	}
	return b
}

// nh appends the two hashes of p, whose length is a multiple of 16 up to block.
func (h *Hasher) nh(b, p []byte) []byte {
	var lo0, hi0, lo1, hi1, carry uint64
	key := h.key[:]
	for len(p) >= 16 && len(key) >= 4 {
		x, y := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
		hi, lo := bits.Mul64(x+key[0], y+key[1])
		lo0, carry = bits.Add64(lo0, lo, 0)
		hi0, _ = bits.Add64(hi0, hi, carry)
		hi, lo = bits.Mul64(x+key[2], y+key[3])
		lo1, carry = bits.Add64(lo1, lo, 0)
		hi1, _ = bits.Add64(hi1, hi, carry)
		p, key = p[16:], key[2:]
	}
	b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, lo0), hi0)
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, lo1), hi1)
}

// digest is the way in which a canonical form takes a long text in.
type digest func(b, text []byte) []byte

// whole takes it in by SHA-256, the same in every process.
func whole(b, text []byte) []byte {
	sum := sha256.Sum256(text)
	return append(b, sum[:]...)
}
