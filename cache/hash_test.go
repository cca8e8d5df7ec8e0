package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"math/big"
	"math/rand/v2"
	"testing"
)

// slow is NH as its paper writes it, on big numbers.
func slow(key []uint64, p []byte) []byte {
	p = append([]byte{}, p...)
	for len(p)%lane != 0 {
		p = append(p, 0)
	}
	var out []byte
	for round := range 2 {
		sum := new(big.Int)
		for i := 0; i+16 <= len(p); i += 16 {
			k := key[i/8+2*round:]
			x, y := binary.LittleEndian.Uint64(p[i:])+k[0], binary.LittleEndian.Uint64(p[i+8:])+k[1]
			sum.Add(sum, new(big.Int).Mul(new(big.Int).SetUint64(x), new(big.Int).SetUint64(y)))
		}
		sum.Mod(sum, new(big.Int).Lsh(big.NewInt(1), 128))
		half := new(big.Int).And(sum, new(big.Int).SetUint64(^uint64(0)))
		out = binary.LittleEndian.AppendUint64(out, half.Uint64())
		out = binary.LittleEndian.AppendUint64(out, new(big.Int).Rsh(sum, 64).Uint64())
	}
	return out
}

func TestCompressIsNH(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	h := NewHasher()
	for _, n := range []int{1, 15, 16, 17, 63, 64, 65, 511, 512, 1000, 1023, 1024, 1025, 2048, 5000} {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		var want []byte
		for rest := p; len(rest) > 0; rest = rest[min(block, len(rest)):] {
			want = append(want, slow(h.long[:], rest[:min(block, len(rest))])...)
		}
		if got := h.long.compress([]byte("x"), p); got[0] != 'x' || !bytes.Equal(got[1:], want) {
			t.Errorf("%d bytes: got %x, want %x", n, got[1:], want)
		}
	}
}

// A key is a form's hash under the second secret, or of its blocks' hashes, and its length.
func TestKeyIsNH(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	h := NewHasher()
	for _, n := range []int{1, 63, 64, 65, 300, 1023, 1024, 1025, 5000} {
		form := make([]byte, n, n+n%2*100) // with room behind it and without
		for i := range form {
			form[i] = byte(rng.Uint32())
		}
		var want []byte
		for rest := form; len(rest) > 0; rest = rest[min(block, len(rest)):] {
			want = append(want, slow(h.whole[:], rest[:min(block, len(rest))])...)
		}
		if n >= block {
			sum := sha256.Sum256(want)
			want = sum[:]
		}
		var k Key
		same := bytes.Clone(form)
		if got := h.key(&k, form); !bytes.Equal(k[:], binary.LittleEndian.AppendUint64(want, uint64(n))) || !bytes.Equal(got[:n], same) {
			t.Errorf("%d bytes: got %x, want %x and the length", n, k, want)
		}
	}
}

// One bit anywhere, and another secret, give another hash.
func TestCompressSeesEveryBit(t *testing.T) {
	h, other := NewHasher(), NewHasher()
	p := make([]byte, 2100)
	first := string(h.long.compress(nil, p))
	if string(other.long.compress(nil, p)) == first {
		t.Error("two secrets give one hash")
	}
	seen := map[string]int{first: -1}
	for i := range len(p) * 8 {
		p[i/8] ^= 1 << (i % 8)
		sum := string(h.long.compress(nil, p))
		p[i/8] ^= 1 << (i % 8)
		if at, ok := seen[sum]; ok {
			t.Fatalf("bits %d and %d give one hash", i, at)
		}
		seen[sum] = i
	}
}
