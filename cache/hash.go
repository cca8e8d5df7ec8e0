package cache

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
)

// block is how much of a long text one NH hash takes in.
const block = 1024

// Hasher makes the keys of one process by NH, the universal hash of UMAC (Black, Halevi,
// Krawczyk, Krovetz, Rogaway, 1999), with 64-bit words and a Toeplitz key for two rounds:
// two texts of one length that differ have one hash with a probability of 2^-128, whoever
// chose them, as long as they don't know the secret. Long texts are compressed 32 to 1
// under one secret, and what a form is then has its hash under another, which was drawn
// without regard to it. Of a form that is still more than a block SHA-256 is taken over
// the blocks' hashes. So a wrong hit needs 128 bits of luck or a collision of SHA-256, and
// a long input costs a fraction of SHA-256's time.
type Hasher struct{ long, whole secret }

// secret is the key of NH for a block.
type secret [block/8 + 2]uint64

// NewHasher makes a Hasher with fresh secrets.
func NewHasher() *Hasher {
	h := &Hasher{}
	for _, s := range []*secret{&h.long, &h.whole} {
		var raw [len(s) * 8]byte
		rand.Read(raw[:])
		for i := range s {
			s[i] = binary.LittleEndian.Uint64(raw[8*i:])
		}
	}
	return h
}

// key makes the key of a canonical form, which is given back with zeros and more behind it.
func (h *Hasher) key(k *Key, form []byte) []byte {
	n := len(form)
	binary.LittleEndian.PutUint64(k[len(k)-8:], uint64(n))
	if n < block {
		var zeros [lane]byte
		form = append(form, zeros[:(lane-n%lane)%lane]...)
		h.whole.nh(k[:0], form)
		return form
	}
	form = h.whole.compress(form, form)
	sum := sha256.Sum256(form[n:])
	copy(k[:], sum[:])
	return form
}

// compress appends the NH hashes of p's blocks to b. The last block counts as if zeros
// followed; its length must be told apart by who calls.
func (h *secret) compress(b, p []byte) []byte {
	for len(p) >= block {
		b = h.nh(b, p[:block])
		p = p[block:]
	}
	if len(p) > 0 {
		var last [block]byte
		n := (copy(last[:], p) + lane - 1) / lane * lane
		b = h.nh(b, last[:n])
	}
	return b
}

// lane is how much nh takes in at a time.
const lane = 64

// nh appends the two hashes of p, whose length is a multiple of lane up to block. It is
// written out for a lane so that the compiler drops the checks of bounds.
func (h *secret) nh(b, p []byte) []byte {
	var first, second sum
	for key := h[:]; len(p) >= lane && len(key) >= lane/8+2; key = key[lane/8:] {
		q, k := (*[lane]byte)(p), (*[lane/8 + 2]uint64)(key)
		x, y := binary.LittleEndian.Uint64(q[0:]), binary.LittleEndian.Uint64(q[8:])
		first, second = first.add(x+k[0], y+k[1]), second.add(x+k[2], y+k[3])
		x, y = binary.LittleEndian.Uint64(q[16:]), binary.LittleEndian.Uint64(q[24:])
		first, second = first.add(x+k[2], y+k[3]), second.add(x+k[4], y+k[5])
		x, y = binary.LittleEndian.Uint64(q[32:]), binary.LittleEndian.Uint64(q[40:])
		first, second = first.add(x+k[4], y+k[5]), second.add(x+k[6], y+k[7])
		x, y = binary.LittleEndian.Uint64(q[48:]), binary.LittleEndian.Uint64(q[56:])
		first, second = first.add(x+k[6], y+k[7]), second.add(x+k[8], y+k[9])
		p = p[lane:]
	}
	return second.append(first.append(b))
}

// sum is a sum of products, modulo 2^128.
type sum struct{ lo, hi uint64 }

func (s sum) add(x, y uint64) sum {
	hi, lo := bits.Mul64(x, y)
	lo, carry := bits.Add64(s.lo, lo, 0)
	hi, _ = bits.Add64(s.hi, hi, carry)
	return sum{lo, hi}
}

func (s sum) append(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, s.lo), s.hi)
}

// digest is the way in which a canonical form takes a long text in.
type digest func(b, text []byte) []byte

// whole takes it in by SHA-256, the same in every process.
func whole(b, text []byte) []byte {
	sum := sha256.Sum256(text)
	return append(b, sum[:]...)
}
