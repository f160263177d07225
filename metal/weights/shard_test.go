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

	"metalfleet.dev/metalfleet/metal/folder"
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
		"two tensors, one after the other":         {file: shard("{"+a+","+next+"}", 24)},
		"written in another order than they lie":   {file: shard("{"+next+","+a+"}", 24)},
		"metadata and padding":                     {file: shard(`{"__metadata__":{"format":"pt"},`+a+"}   ", 16)},
		"null for metadata, as MLX writes it":      {file: shard(`{"__metadata__":null,`+a+"}", 16)},
		"a single number, and an empty tensor":     {file: shard("{"+tensorJSON("a", "BF16", "", 0, 2)+","+tensorJSON("e", "F32", "0,3", 2, 2)+"}", 2)},
		"nothing at all":                           {file: shard("{}", 0)},
		"empty file":                               {want: ErrTruncated, says: "length"},
		"seven bytes":                              {file: make([]byte, 7), want: ErrTruncated, says: "length"},
		"a header that is longer than the file":    {file: shardOfLength(1000, "{}"), want: ErrTruncated, says: "1000"},
		"an absurd header":                         {file: shardOfLength(1<<63, "{}"), want: ErrInvalid, says: "at most"},
		"a header beyond the limit":                {file: shardOfLength(maxShardHeader+1, "{}"), want: ErrInvalid, says: "at most"},
		"a header of nothing":                      {file: shardOfLength(0, "{}"), want: ErrInvalid, says: "begin with {"},
		"another format":                           {file: []byte("GGUF\x03\x00\x00\x00 and more of it"), want: ErrInvalid, says: "safetensors file?"},
		"a header that begins with a blank":        {file: shard(" {}", 0), want: ErrInvalid, says: "begin with {"},
		"a list":                                   {file: shard("[1]", 0), want: ErrInvalid, says: "begin with {"},
		"broken JSON":                              {file: shard("{"+a+",}", 16), want: ErrInvalid, says: "not JSON"},
		"JSON that ends too early":                 {file: shard("{"+a, 16), want: ErrTruncated, says: "ends unexpectedly"},
		"something after the JSON":                 {file: shard("{"+a+"} {}", 16), want: ErrInvalid, says: "trailing data"},
		"a name twice":                             {file: shard("{"+a+","+a+"}", 16), want: ErrInvalid, says: `"a" appears twice`},
		"a field twice":                            {file: shard(`{"a":{"dtype":"F32","dtype":"F16","shape":[4],"data_offsets":[0,16]}}`, 16), want: ErrInvalid, says: "twice"},
		"metadata twice":                           {file: shard(`{"__metadata__":{},"__metadata__":{}}`, 0), want: ErrInvalid, says: "twice"},
		"metadata that is a list":                  {file: shard(`{"__metadata__":[]}`, 0), want: ErrInvalid, says: "__metadata__ is not an object"},
		"metadata that is not text":                {file: shard(`{"__metadata__":{"a":1}}`, 0), want: ErrInvalid, says: "not a string"},
		"a field that is not known":                {file: shard(`{"a":{"dtype":"F32","shape":[4],"strides":[1]}}`, 16), want: ErrInvalid, says: "strides"},
		"no offsets":                               {file: shard(`{"a":{"dtype":"F32","shape":[4]}}`, 16), want: ErrInvalid, says: "lacks dtype"},
		"a tensor that is a number":                {file: shard(`{"a":1}`, 0), want: ErrInvalid, says: "want an object"},
		"a dtype that is not known":                {file: shard("{"+tensorJSON("a", "F4", "4", 0, 2)+"}", 2), want: ErrUnsupported, says: "F4"},
		"a dtype that is not text":                 {file: shard(`{"a":{"dtype":7,"shape":[4],"data_offsets":[0,16]}}`, 16), want: ErrInvalid, says: "dtype"},
		"a shape that is not a list":               {file: shard(`{"a":{"dtype":"F32","shape":4,"data_offsets":[0,16]}}`, 16), want: ErrInvalid, says: "shape"},
		"a shape that is null":                     {file: shard(`{"a":{"dtype":"F32","shape":null,"data_offsets":[0,4]}}`, 4), want: ErrInvalid, says: "shape"},
		"a negative dimension":                     {file: shard("{"+tensorJSON("a", "F32", "-4", 0, 16)+"}", 16), want: ErrInvalid, says: "non-negative"},
		"a dimension that is not whole":            {file: shard("{"+tensorJSON("a", "F32", "4.0", 0, 16)+"}", 16), want: ErrInvalid, says: "non-negative"},
		"a dimension beyond 64 bits":               {file: shard("{"+tensorJSON("a", "F32", "18446744073709551620", 0, 16)+"}", 16), want: ErrInvalid, says: "non-negative"},
		"nine dimensions":                          {file: shard("{"+tensorJSON("a", "F32", "1,1,1,1,1,1,1,1,1", 0, 4)+"}", 4), want: ErrInvalid, says: "at most 8"},
		"a product that overflows":                 {file: shard("{"+tensorJSON("a", "F32", "4294967296,4294967296", 0, 0)+"}", 0), want: ErrInvalid, says: "too many elements"},
		"a product that overflows by its width":    {file: shard("{"+tensorJSON("a", "F32", huge, 0, 16)+"}", 16), want: ErrInvalid, says: "too many elements"},
		"a shape that needs more than the offsets": {file: shard("{"+tensorJSON("a", "F32", "5", 0, 16)+"}", 16), want: ErrInvalid, says: "needs 20 bytes"},
		"offsets that run backwards":               {file: shard("{"+tensorJSON("a", "F32", "4", 16, 0)+"}", 16), want: ErrInvalid, says: "a begin and an end"},
		"negative offsets":                         {file: shard("{"+tensorJSON("a", "F32", "4", -16, 0)+"}", 16), want: ErrInvalid, says: "non-negative"},
		"three offsets":                            {file: shard(`{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,8,16]}}`, 16), want: ErrInvalid, says: "a begin and an end"},
		"offsets after the end":                    {file: shard("{"+tensorJSON("a", "F32", "4", 16, 32)+"}", 16), want: ErrTruncated, says: "ends at 32"},
		"a tensor that is cut off":                 {file: shard("{"+a+"}", 15), want: ErrTruncated, says: "ends at 16"},
		"tensors that overlap":                     {file: shard("{"+a+","+tensorJSON("b", "F32", "4", 8, 24)+"}", 24), want: ErrInvalid, says: "overlaps"},
		"two tensors in one place":                 {file: shard("{"+a+","+tensorJSON("b", "F32", "4", 0, 16)+"}", 16), want: ErrInvalid, says: "overlaps"},
		"a hole between tensors":                   {file: shard("{"+a+","+tensorJSON("b", "F16", "2,2", 20, 28)+"}", 28), want: ErrInvalid, says: "belong to no tensor"},
		"a hole before the first":                  {file: shard("{"+tensorJSON("b", "F16", "2,2", 8, 16)+"}", 16), want: ErrInvalid, says: "belong to no tensor"},
		"bytes after the last":                     {file: shard("{"+a+"}", 17), want: ErrInvalid, says: "1 bytes after"},
		"a name of a megabyte":                     {file: shard("{"+tensorJSON(strings.Repeat("x", 1<<20), "F32", "4", 0, 16)+"}", 16), want: ErrInvalid, says: "a name has"},
		"deep nesting":                             {file: shard(`{"a":{"shape":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+"}}", 0), want: ErrInvalid, says: "deep"},
		"deep nesting of objects":                  {file: shard(`{"a":{"shape":`+strings.Repeat(`{"a":`, 5000)+"1"+strings.Repeat("}", 5000)+"}}", 0), want: ErrInvalid, says: "deep"},
		"a shape of a million numbers":             {file: shard(`{"a":{"shape":[`+strings.Repeat("1,", 1<<20)+"1]}}", 0), want: ErrInvalid, says: "values"},
		"metadata of a hundred thousand keys":      {file: shard(`{"__metadata__":{`+many(100_000, func(i int) string { return `"` + strconv.Itoa(i) + `":""` })+"}}", 0), want: ErrInvalid, says: "more than 65536 keys"},
		"three hundred thousand tensors": {file: shard("{"+many(300_000, func(i int) string {
			return `"` + strconv.Itoa(i) + `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`
		})+"}", 0), want: ErrInvalid, says: "more than 131072 tensors"},
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
		"enough for two":                {left: allowance{bytes: 2 * int64(len(b)), tensors: 2}},
		"bytes of one and a half":       {left: allowance{bytes: int64(len(b)), tensors: 2}, want: ErrInvalid, says: "of all files"},
		"one tensor, for two of a kind": {left: allowance{bytes: 1 << 20, tensors: 1}, want: ErrInvalid, says: "more than 0 tensors"},
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
		"two files":               {text: `{"metadata":{"total_size":1},"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}`},
		"no map":                  {text: `{"metadata":{}}`, want: ErrMissing, says: "weight_map"},
		"a list":                  {text: `[]`, want: ErrInvalid, says: "object"},
		"nothing":                 {want: ErrTruncated, says: "unexpectedly"},
		"a map that is a list":    {text: `{"weight_map":[]}`, want: ErrInvalid, says: "object"},
		"a file that is a number": {text: `{"weight_map":{"a":1}}`, want: ErrInvalid, says: "not a name"},
		"a file without a name":   {text: `{"weight_map":{"a":""}}`, want: ErrInvalid, says: "not a name"},
		"a tensor twice":          {text: `{"weight_map":{"a":"model-1.safetensors","a":"model-2.safetensors"}}`, want: ErrInvalid, says: "twice"},
		"a map twice":             {text: `{"weight_map":{},"weight_map":{}}`, want: ErrInvalid, says: "twice"},
		"deep metadata":           {text: `{"metadata":` + strings.Repeat("[", 100_000) + `}`, want: ErrInvalid, says: "depth"},
		"something after it":      {text: `{"weight_map":{}} 1`, want: ErrInvalid, says: "trailing data"},
		"a long name":             {text: `{"weight_map":{"` + strings.Repeat("x", 2000) + `":"m"}}`, want: ErrInvalid, says: "name"},
		"three hundred thousand entries": {text: `{"weight_map":{` + many(300_000, func(i int) string { return `"` + strconv.Itoa(i) + `":"m"` }) + `}}`,
			want: ErrInvalid, says: "more than 131072"},
		"three hundred thousand keys": {text: `{` + many(300_000, func(i int) string { return `"` + strconv.Itoa(i) + `":1` }) + `}`,
			want: ErrInvalid, says: "more than 262144"},
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

// Headers of folders share the budget of GGUF headers.
func TestAttackHeadersOfFoldersShareOneBudget(t *testing.T) {
	const mebi = 1 << 20
	b := NewBudget(32 * mebi)
	tensors := many(20_000, func(i int) string { return tensorJSON(fmt.Sprint(i), "F32", "0", 0, 0) })
	for name, c := range map[string]struct {
		header  string
		free    int64 // less is too little
		invalid bool
	}{
		"a long text":     {header: `{"__metadata__":{"x":"` + strings.Repeat("x", 3*mebi) + `"}}`, free: 13 * mebi},
		"a longer text":   {header: `{"__metadata__":{"x":"` + strings.Repeat("x", 5*mebi) + `"}}`, free: 32 * mebi, invalid: true},
		"many tensors":    {header: "{" + tensors + "}", free: 11 * mebi},
		"a short text":    {header: `{"__metadata__":{"x":"x"}}`, free: mebi},
		"no more than it": {header: "{}", free: mebi},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range map[string][]byte{configFile: []byte("{" + llamaConfig + "}"), "model.safetensors": shard(c.header, 0)} {
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

// An index of tens of MiB is counted before it is read, not after.
func TestAnIndexIsCountedBeforeItIsRead(t *testing.T) {
	path := t.TempDir()
	text := `{"weight_map":{"a":"model.safetensors"}` + strings.Repeat(" ", 16<<20) + "}"
	if err := os.WriteFile(filepath.Join(path, indexFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := folder.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	b := NewBudget(256 << 20)
	if !b.take(240 << 20) { // by others
		t.Fatal("no room")
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = readIndex(dir, &account{budget: b})
	runtime.ReadMemStats(&after)
	if !errors.Is(err, ErrBusy) || after.TotalAlloc-before.TotalAlloc > 4<<20 {
		t.Errorf("%v, and %d MiB are allocated", err, (after.TotalAlloc-before.TotalAlloc)>>20)
	}
	b.give(240 << 20)
	memory := account{budget: b}
	if index, err := readIndex(dir, &memory); err != nil || index["a"] != "model.safetensors" {
		t.Errorf("%v, %v", index, err)
	}
}

// TestOtherValuesOfAnIndexAreNotBuilt: only the text of an index is counted, and many values would
// take far more.
func TestOtherValuesOfAnIndexAreNotBuilt(t *testing.T) {
	text := []byte(`{"metadata":[` + strings.Repeat(`{"a":0},`, 100_000) + `0],"weight_map":{"a":"model.safetensors"}}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	index, err := parseIndex(text)
	runtime.ReadMemStats(&after)
	if bytes := after.TotalAlloc - before.TotalAlloc; err != nil || index["a"] != "model.safetensors" || bytes > jsonMemory*uint64(len(text)) {
		t.Errorf("%v, %v; %d KiB are allocated for a text of %d", index, err, bytes>>10, len(text)>>10)
	}
	for broken, want := range map[string]error{`{"a":[1`: ErrTruncated, `{"a":[1}`: ErrInvalid} {
		if _, err := parseIndex([]byte(broken)); !errors.Is(err, want) {
			t.Errorf("%s: %v", broken, err)
		}
	}
}
