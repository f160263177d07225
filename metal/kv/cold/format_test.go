package cold_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/cespare/xxhash/v2"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
)

func header() cold.Header {
	o := kv.Origin{Model: "sha256:ab", Numerics: "ref 1", Layout: "16 tokens"}
	return cold.Header{Key: kv.Root(o, kv.Salt{}).Next([]int32{1, 2}), Namespace: cold.NamespaceOf(o), PayloadBytes: 5, Sum: xxhash.Sum64String("hello")}
}

// TestAHeaderHasTheseBytes: a file written once must be read for ever.
func TestAHeaderHasTheseBytes(t *testing.T) {
	b := header().Encode()
	const want = "4d464b56434f4c440100000080000000" + "0500000000000000"
	if got := hex.EncodeToString(b[:24]); got != want {
		t.Errorf("begins with %s, want %s", got, want)
	}
	if sum := hex.EncodeToString(b[88:]); sum != "a36d9f887d82c726"+"000000000000000000000000000000000000000000000000"+"b1d3fc24159b577a" {
		t.Errorf("ends with %s", sum)
	}
	h, err := cold.ParseHeader(b[:])
	if err != nil || h != header() {
		t.Errorf("read %+v: %v", h, err)
	}
}

// TestEveryBitOfAHeaderMatters: one that is not as it was written is refused.
func TestEveryBitOfAHeaderMatters(t *testing.T) {
	good := header().Encode()
	for bit := range 8 * len(good) {
		b := good
		b[bit/8] ^= 1 << (bit % 8)
		if h, err := cold.ParseHeader(b[:]); err == nil {
			t.Fatalf("bit %d flipped is read as %+v", bit, h)
		} else if foreign := errors.Is(err, cold.ErrForeign); foreign != (bit/8 < 12) || foreign == errors.Is(err, kv.ErrCorrupt) {
			t.Fatalf("bit %d: %v", bit, err)
		}
	}
	for n := range len(good) {
		if _, err := cold.ParseHeader(good[:n]); !errors.Is(err, cold.ErrForeign) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

// TestAHeaderWithASoundChecksumIsStillJudged: what says of itself that it is
// right may still be too much.
func TestAHeaderWithASoundChecksumIsStillJudged(t *testing.T) {
	huge := header()
	huge.PayloadBytes = cold.MaxPayloadBytes + 1
	if b := huge.Encode(); !fails(b[:], kv.ErrCorrupt) {
		t.Error("a huge payload is believed")
	}
	negative := header()
	negative.PayloadBytes = -1
	if b := negative.Encode(); !fails(b[:], kv.ErrCorrupt) {
		t.Error("a negative payload is believed")
	}
	for name, at := range map[string]int{"a longer header": 12, "a part of later versions": 100} {
		b := header().Encode()
		b[at]++
		sum := xxhash.Sum64(b[:120])
		for i := range 8 {
			b[120+i] = byte(sum >> (8 * i))
		}
		if !fails(b[:], cold.ErrForeign) {
			t.Errorf("%s is read", name)
		}
	}
}

func fails(b []byte, want error) bool {
	_, err := cold.ParseHeader(b)
	return errors.Is(err, want)
}

func FuzzHeader(f *testing.F) {
	b := header().Encode()
	f.Add(b[:])
	f.Add(b[:60])
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := cold.ParseHeader(b)
		if err != nil {
			if !errors.Is(err, cold.ErrForeign) && !errors.Is(err, kv.ErrCorrupt) {
				t.Errorf("an error of no kind: %v", err)
			}
			return
		}
		if again := h.Encode(); !bytes.Equal(again[:], b[:cold.HeaderBytes]) {
			t.Errorf("%x reads as %+v, which is written %x", b, h, again)
		}
		if h.PayloadBytes < 0 || h.PayloadBytes > cold.MaxPayloadBytes {
			t.Errorf("%d bytes", h.PayloadBytes)
		}
	})
}

func TestNamesLeadNowhereElse(t *testing.T) {
	h := header()
	name := h.Key.String() + ".kv"
	if k, ok := cold.ParseName(name[:1], name); !ok || k != h.Key {
		t.Errorf("%s is not read", name)
	}
	other := "0"
	if name[0] == '0' {
		other = "1"
	}
	for shard, name := range map[string]string{other: name, name[:1]: name[:10] + ".kv", "": name + "x"} {
		if _, ok := cold.ParseName(shard, name); ok {
			t.Errorf("%s/%s is taken for a block", shard, name)
		}
	}
	for _, epoch := range []string{"", "..", "a/b", "A", "-a", "a.b", string(make([]byte, 65))} {
		if cold.CheckEpoch(epoch) == nil {
			t.Errorf("epoch %q is taken", epoch)
		}
	}
	if err := cold.CheckEpoch("0-az"); err != nil {
		t.Error(err)
	}
	if n, err := cold.ParseNamespace(h.Namespace.String()); err != nil || n != h.Namespace {
		t.Error(n, err)
	}
	for _, bad := range []string{"", "..", h.Namespace.String()[1:] + "g", "A" + h.Namespace.String()[1:]} {
		if _, err := cold.ParseNamespace(bad); err == nil {
			t.Errorf("namespace %q is taken", bad)
		}
	}
}
