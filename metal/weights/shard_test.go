//go:build !race

package weights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// shard is a safetensors file of a header and some bytes of data.
func shard(header string, data int) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	out = append(out, header...)
	return append(out, make([]byte, data)...)
}

// shardOfLength claims a length of its header.
func shardOfLength(n uint64, header string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, n), header...)
}

func parseShard(b []byte) ([]shardTensor, error) {
	return readShard(bytes.NewReader(b), int64(len(b)), newAllowance(&account{budget: NewBudget(HeaderMemory)}))
}

// tensorJSON is one entry of a header.
func tensorJSON(name, kind, shape string, begin, end int) string {
	return fmt.Sprintf(`%q:{"dtype":%q,"shape":[%s],"data_offsets":[%d,%d]}`, name, kind, shape, begin, end)
}

func many(n int, item func(int) string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(item(i))
	}
	return b.String()
}

func TestHostileShardsAreTypedErrors(t *testing.T) {
	a, next := tensorJSON("a", "F32", "4", 0, 16), tensorJSON("b", "F16", "2,2", 16, 24)
	huge := fmt.Sprint(math.MaxInt64)
	for name, c := range map[string]struct {
		file []byte
		want error
		says string
	}{
		"two tensors, one after the other":         {shard("{"+a+","+next+"}", 24), nil, ""},
		"written in another order than they lie":   {shard("{"+next+","+a+"}", 24), nil, ""},
		"metadata and padding":                     {shard(`{"__metadata__":{"format":"pt"},`+a+"}   ", 16), nil, ""},
		"a single number, and an empty tensor":     {shard("{"+tensorJSON("a", "BF16", "", 0, 2)+","+tensorJSON("e", "F32", "0,3", 2, 2)+"}", 2), nil, ""},
		"nothing at all":                           {shard("{}", 0), nil, ""},
		"empty file":                               {nil, ErrTruncated, "length"},
		"seven bytes":                              {make([]byte, 7), ErrTruncated, "length"},
		"a header that is longer than the file":    {shardOfLength(1000, "{}"), ErrTruncated, "1000"},
		"an absurd header":                         {shardOfLength(1<<63, "{}"), ErrInvalid, "at most"},
		"a header beyond the limit":                {shardOfLength(maxShardHeader+1, "{}"), ErrInvalid, "at most"},
		"a header of nothing":                      {shardOfLength(0, "{}"), ErrInvalid, "begin with {"},
		"another format":                           {[]byte("GGUF\x03\x00\x00\x00 and more of it"), ErrInvalid, "safetensors file?"},
		"a header that begins with a blank":        {shard(" {}", 0), ErrInvalid, "begin with {"},
		"a list":                                   {shard("[1]", 0), ErrInvalid, "begin with {"},
		"broken JSON":                              {shard("{"+a+",}", 16), ErrInvalid, "not JSON"},
		"JSON that ends too early":                 {shard("{"+a, 16), ErrTruncated, "ends unexpectedly"},
		"something after the JSON":                 {shard("{"+a+"} {}", 16), ErrInvalid, "trailing data"},
		"a name twice":                             {shard("{"+a+","+a+"}", 16), ErrInvalid, `"a" appears twice`},
		"a field twice":                            {shard(`{"a":{"dtype":"F32","dtype":"F16","shape":[4],"data_offsets":[0,16]}}`, 16), ErrInvalid, "twice"},
		"metadata twice":                           {shard(`{"__metadata__":{},"__metadata__":{}}`, 0), ErrInvalid, "twice"},
		"metadata that is not text":                {shard(`{"__metadata__":{"a":1}}`, 0), ErrInvalid, "not a string"},
		"a field that is not known":                {shard(`{"a":{"dtype":"F32","shape":[4],"strides":[1]}}`, 16), ErrInvalid, "strides"},
		"no offsets":                               {shard(`{"a":{"dtype":"F32","shape":[4]}}`, 16), ErrInvalid, "lacks dtype"},
		"a tensor that is a number":                {shard(`{"a":1}`, 0), ErrInvalid, "want an object"},
		"a dtype that is not known":                {shard("{"+tensorJSON("a", "F4", "4", 0, 2)+"}", 2), ErrUnsupported, "F4"},
		"a dtype that is not text":                 {shard(`{"a":{"dtype":7,"shape":[4],"data_offsets":[0,16]}}`, 16), ErrInvalid, "dtype"},
		"a shape that is not a list":               {shard(`{"a":{"dtype":"F32","shape":4,"data_offsets":[0,16]}}`, 16), ErrInvalid, "shape"},
		"a shape that is null":                     {shard(`{"a":{"dtype":"F32","shape":null,"data_offsets":[0,4]}}`, 4), ErrInvalid, "shape"},
		"a negative dimension":                     {shard("{"+tensorJSON("a", "F32", "-4", 0, 16)+"}", 16), ErrInvalid, "non-negative"},
		"a dimension that is not whole":            {shard("{"+tensorJSON("a", "F32", "4.0", 0, 16)+"}", 16), ErrInvalid, "non-negative"},
		"a dimension beyond 64 bits":               {shard("{"+tensorJSON("a", "F32", "18446744073709551620", 0, 16)+"}", 16), ErrInvalid, "non-negative"},
		"nine dimensions":                          {shard("{"+tensorJSON("a", "F32", "1,1,1,1,1,1,1,1,1", 0, 4)+"}", 4), ErrInvalid, "at most 8"},
		"a product that overflows":                 {shard("{"+tensorJSON("a", "F32", "4294967296,4294967296", 0, 0)+"}", 0), ErrInvalid, "too many elements"},
		"a product that overflows by its width":    {shard("{"+tensorJSON("a", "F32", huge, 0, 16)+"}", 16), ErrInvalid, "too many elements"},
		"a shape that needs more than the offsets": {shard("{"+tensorJSON("a", "F32", "5", 0, 16)+"}", 16), ErrInvalid, "needs 20 bytes"},
		"offsets that run backwards":               {shard("{"+tensorJSON("a", "F32", "4", 16, 0)+"}", 16), ErrInvalid, "a begin and an end"},
		"negative offsets":                         {shard("{"+tensorJSON("a", "F32", "4", -16, 0)+"}", 16), ErrInvalid, "non-negative"},
		"three offsets":                            {shard(`{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,8,16]}}`, 16), ErrInvalid, "a begin and an end"},
		"offsets after the end":                    {shard("{"+tensorJSON("a", "F32", "4", 16, 32)+"}", 16), ErrTruncated, "ends at 32"},
		"a tensor that is cut off":                 {shard("{"+a+"}", 15), ErrTruncated, "ends at 16"},
		"tensors that overlap":                     {shard("{"+a+","+tensorJSON("b", "F32", "4", 8, 24)+"}", 24), ErrInvalid, "overlaps"},
		"two tensors in one place":                 {shard("{"+a+","+tensorJSON("b", "F32", "4", 0, 16)+"}", 16), ErrInvalid, "overlaps"},
		"a hole between tensors":                   {shard("{"+a+","+tensorJSON("b", "F16", "2,2", 20, 28)+"}", 28), ErrInvalid, "belong to no tensor"},
		"a hole before the first":                  {shard("{"+tensorJSON("b", "F16", "2,2", 8, 16)+"}", 16), ErrInvalid, "belong to no tensor"},
		"bytes after the last":                     {shard("{"+a+"}", 17), ErrInvalid, "1 bytes after"},
		"a name of a megabyte":                     {shard("{"+tensorJSON(strings.Repeat("x", 1<<20), "F32", "4", 0, 16)+"}", 16), ErrInvalid, "a name has"},
		"deep nesting":                             {shard(`{"a":{"shape":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+"}}", 0), ErrInvalid, "deep"},
		"deep nesting of objects":                  {shard(`{"a":{"shape":`+strings.Repeat(`{"a":`, 5000)+"1"+strings.Repeat("}", 5000)+"}}", 0), ErrInvalid, "deep"},
		"a shape of a million numbers":             {shard(`{"a":{"shape":[`+strings.Repeat("1,", 1<<20)+"1]}}", 0), ErrInvalid, "values"},
		"metadata of a hundred thousand keys":      {shard(`{"__metadata__":{`+many(100_000, func(i int) string { return `"` + strconv.Itoa(i) + `":""` })+"}}", 0), ErrInvalid, "more than 65536 keys"},
		"three hundred thousand tensors": {shard("{"+many(300_000, func(i int) string {
			return `"` + strconv.Itoa(i) + `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`
		})+"}", 0), ErrInvalid, "more than 131072 tensors"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseShard(c.file)
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v saying %q", err, c.want, c.says)
			}
			if err != nil && len(err.Error()) > 1000 {
				t.Errorf("a message of %d bytes", len(err.Error()))
			}
		})
	}
}

func TestHeadersOfAllFilesAreBoundedTogether(t *testing.T) {
	b := shard("{"+tensorJSON("a", "F32", "4", 0, 16)+"}", 16)
	for name, c := range map[string]struct {
		left allowance
		want error
		says string
	}{
		"enough for two":                {allowance{bytes: 2 * int64(len(b)), tensors: 2}, nil, ""},
		"bytes of one and a half":       {allowance{bytes: int64(len(b)), tensors: 2}, ErrInvalid, "of all files"},
		"one tensor, for two of a kind": {allowance{bytes: 1 << 20, tensors: 1}, ErrInvalid, "more than 0 tensors"},
	} {
		t.Run(name, func(t *testing.T) {
			c.left.memory = &account{budget: NewBudget(HeaderMemory)}
			_, first := readShard(bytes.NewReader(b), int64(len(b)), &c.left)
			_, err := readShard(bytes.NewReader(b), int64(len(b)), &c.left)
			if first != nil || !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("errors %v and %v, want none and %v saying %q", first, err, c.want, c.says)
			}
		})
	}
}

func TestTensorsOfAShardLieWhereItSays(t *testing.T) {
	header := "{" + tensorJSON("b", "F16", "2,2", 16, 24) + "," + tensorJSON("a", "F32", "4", 0, 16) + "}"
	tensors, err := parseShard(shard(header, 24))
	if err != nil {
		t.Fatal(err)
	}
	data := int64(8 + len(header))
	for i, want := range []span{{offset: data + 16, bytes: 8}, {offset: data, bytes: 16}} {
		if tensors[i].span != want {
			t.Errorf("tensor %d lies at %+v, want %+v", i, tensors[i].span, want)
		}
	}
}

func TestLengthsThatAreNotThereAllocateNothing(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, b := range [][]byte{
		shardOfLength(maxShardHeader, "{}"), shardOfLength(1<<62, "{}"),
		shard("{"+tensorJSON("a", "F32", "1099511627776", 0, 4398046511104)+"}", 0),
		shard(`{"a":{"dtype":"F32","shape":[1000000000000`, 0),
	} {
		if _, err := parseShard(b); err == nil {
			t.Error("a length was believed")
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes were allocated for four tiny files", n)
	}
}

func TestAShardThatShrinksAfterItsSizeWasTaken(t *testing.T) {
	b := shard("{"+tensorJSON("a", "F32", "4", 0, 16)+"}", 16)
	if _, err := readShard(bytes.NewReader(b[:20]), int64(len(b)), newAllowance(&account{budget: NewBudget(HeaderMemory)})); !errors.Is(err, ErrTruncated) {
		t.Errorf("error %v, want ErrTruncated", err)
	}
	broken := errors.New("input/output error")
	if _, err := readShard(failingReader{broken}, 1000, newAllowance(&account{budget: NewBudget(HeaderMemory)})); !errors.Is(err, broken) {
		t.Errorf("error %v, want the reader's own", err)
	}
}

type failingReader struct{ err error }

func (f failingReader) ReadAt([]byte, int64) (int, error) { return 0, f.err }

func FuzzShard(f *testing.F) {
	f.Add(shard("{"+tensorJSON("a", "F32", "4", 0, 16)+","+tensorJSON("b", "F16", "2,2", 16, 24)+"}", 24))
	f.Add(shard(`{"__metadata__":{"format":"pt"},`+tensorJSON("a", "BF16", "", 0, 2)+"} ", 2))
	f.Add(shard("{"+tensorJSON("a", "U32", "0,3", 0, 0)+"}", 0))
	f.Add(shardOfLength(1<<40, "{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tensors, err := parseShard(b)
		if err != nil {
			return
		}
		var sum int64
		for _, x := range tensors {
			if x.span.offset < 8 || x.span.bytes < 0 || x.span.offset+x.span.bytes > int64(len(b)) {
				t.Errorf("tensor %+v lies outside a file of %d bytes", x, len(b))
			}
			sum += x.span.bytes
		}
		if sum > int64(len(b)) {
			t.Errorf("tensors of %d bytes in a file of %d", sum, len(b))
		}
	})
}

func TestHostileIndexes(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want error
		says string
	}{
		"two files":               {`{"metadata":{"total_size":1},"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}`, nil, ""},
		"no map":                  {`{"metadata":{}}`, ErrMissing, "weight_map"},
		"a list":                  {`[]`, ErrInvalid, "object"},
		"nothing":                 {``, ErrTruncated, "unexpectedly"},
		"a map that is a list":    {`{"weight_map":[]}`, ErrInvalid, "object"},
		"a file that is a number": {`{"weight_map":{"a":1}}`, ErrInvalid, "not a name"},
		"a file without a name":   {`{"weight_map":{"a":""}}`, ErrInvalid, "not a name"},
		"a tensor twice":          {`{"weight_map":{"a":"model-1.safetensors","a":"model-2.safetensors"}}`, ErrInvalid, "twice"},
		"a map twice":             {`{"weight_map":{},"weight_map":{}}`, ErrInvalid, "twice"},
		"deep metadata":           {`{"metadata":` + strings.Repeat("[", 100_000) + `}`, ErrInvalid, "deep"},
		"something after it":      {`{"weight_map":{}} 1`, ErrInvalid, "trailing data"},
		"a long name":             {`{"weight_map":{"` + strings.Repeat("x", 2000) + `":"m"}}`, ErrInvalid, "name"},
		"three hundred thousand entries": {`{"weight_map":{` + many(300_000, func(i int) string { return `"` + strconv.Itoa(i) + `":"m"` }) + `}}`,
			ErrInvalid, "more than 131072"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseIndex([]byte(c.text))
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v saying %q", err, c.want, c.says)
			}
		})
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":1},"weight_map":{"a":"model-1.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../../etc/passwd"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		index, err := parseIndex(b)
		if err == nil && len(index) > len(b) {
			t.Error("more entries than bytes")
		}
	})
}

// Headers and indexes of folders share the budget of GGUF headers.
func TestAttackHeadersOfFoldersShareOneBudget(t *testing.T) {
	const mebi = 1 << 20
	b := NewBudget(32 * mebi)
	tensors := many(20_000, func(i int) string { return tensorJSON(fmt.Sprint(i), "F32", "0", 0, 0) })
	for name, c := range map[string]struct {
		header, index string
		free          int64 // less is too little
		invalid       bool
	}{
		"a long text":     {header: `{"__metadata__":{"x":"` + strings.Repeat("x", 3*mebi) + `"}}`, free: 13 * mebi},
		"a longer text":   {header: `{"__metadata__":{"x":"` + strings.Repeat("x", 5*mebi) + `"}}`, free: 32 * mebi, invalid: true},
		"many tensors":    {header: "{" + tensors + "}", free: 11 * mebi},
		"a long index":    {header: "{}", index: `{"x":"` + strings.Repeat("x", 3*mebi) + `","weight_map":{"a":"model.safetensors"}}`, free: 13 * mebi},
		"a short text":    {header: `{"__metadata__":{"x":"x"}}`, free: mebi},
		"no more than it": {header: "{}", free: mebi},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range map[string][]byte{configFile: []byte("{" + llamaConfig + "}"), "model.safetensors": shard(c.header, 0), indexFile: []byte(c.index)} {
				if len(content) == 0 {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, free := range []int64{c.free, c.free - mebi} {
				taken := 32*mebi - free
				if !b.take(taken) {
					t.Fatalf("the budget has %d bytes left", b.left)
				}
				_, err := b.Open(dir)
				if busy := free < c.free && !c.invalid; err == nil || errors.Is(err, ErrBusy) != busy || strings.Contains(err.Error(), "takes more than") != c.invalid {
					t.Errorf("with %d bytes: %v", free, err)
				}
				if b.give(taken); b.left != 32*mebi {
					t.Errorf("the budget has %d bytes left", b.left)
				}
			}
		})
	}
}
