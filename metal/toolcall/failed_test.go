//go:build !race

package toolcall

import (
	"runtime"
	"strings"
	"testing"
)

// failing are texts, of at least size bytes, that begin as a call of a format and are none.
func failing(size int) map[Format]string {
	blanks := strings.Repeat(" ", size)
	return map[Format]string{
		Hermes:  "<tool_call>{" + blanks + "x",
		QwenXML: strings.Repeat("<function=weather><parameter=city>", size/33+1),
		Llama:   "{" + blanks + "x",
		Harmony: "<|channel|>commentary to=functions.weather<|message|>{" + blanks + "x",
	}
}

// TestACallThatFailsIsNotKept: its text is returned, and the parser keeps no copy.
func TestACallThatFailsIsNotKept(t *testing.T) {
	const size = 1 << 20
	for f, text := range failing(size) {
		all := tools(t)
		before := heap()
		p, err := New(f, all, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(text); i += 128 {
			p.Push(text[i:min(len(text), i+128)])
		}
		if f == QwenXML { // its end shows that it is no call
			p.Flush(false)
		}
		if kept := heap() - before; kept > size/8 {
			t.Errorf("%s: %d bytes are kept of %d", f, kept, size)
		}
		runtime.KeepAlive(p)
		runtime.KeepAlive(text)
	}
}

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
