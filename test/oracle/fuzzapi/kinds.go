package fuzzapi

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
)

// kinds of hostile requests.
var kinds = []struct {
	name string
	make func(rng *rand.Rand, path string) shot
}{
	{"deep nesting", nested},
	{"deep schema", deepSchema},
	{"hard expression", hardExpression},
	{"huge number", hugeNumber},
	{"lone surrogate", surrogate},
	{"duplicate key", duplicate},
	{"wrong content type", contentType},
	{"duplicate pair", duplicatePair},
	{"odd query", oddQuery},
	{"body cut off", cutOff},
	{"JSON cut off", cutJSON},
	{"slow chunks", slowChunks},
	{"flipped bytes", flipped},
	{"no JSON", noJSON},
	{"too large", tooLarge},
	{"packed", packed},
	{"client leaves", leaves},
	{"odd header", oddHeader},
	{"odd path", oddPath},
	{"no HTTP", noHTTP},
	{"long text", longText},
	{"many", many},
	{"odd token", oddToken},
	{"stream", stream},
}

func of[T any](rng *rand.Rand, all ...T) T { return all[rng.IntN(len(all))] }

func post(path string, body []byte, w want) shot {
	return shot{method: http.MethodPost, path: path, body: body, want: w}
}

// with is the least body with one member more.
func with(path, name, value string) []byte {
	b := least(path)
	return fmt.Appendf(nil, "%s,%q:%s}", b[:len(b)-1], name, value)
}

// content is the member that holds text.
func content(path string) string {
	return map[string]string{dialect.PathCompletions: "prompt", dialect.PathEmbeddings: "input", dialect.PathResponses: "input", dialect.PathRerank: "documents",
		dialect.PathRerankV2: "documents"}[path]
}

// saying is the least body with another text, which is JSON.
func saying(path, text string) []byte {
	switch content(path) {
	case "prompt", "input":
		return bytes.Replace(least(path), []byte(`"hi"`), []byte(text), 1)
	case "documents":
		return bytes.Replace(least(path), []byte(`"ho"`), []byte(text), 1)
	}
	return bytes.Replace(least(path), []byte(`"hi"`), []byte(text), 1)
}

func nested(rng *rand.Rand, path string) shot {
	n := of(rng, 50, 1000, 9_990, 10_010, 300_000)
	open, end := of(rng, "[", `{"a":`), "]"
	if open != "[" {
		end = "}"
	}
	whole := strings.Repeat(open, n) + "0" + strings.Repeat(end, n)
	if rng.IntN(2) == 0 {
		return post(path, []byte(whole), refusal)
	}
	return post(path, saying(path, whole), refusal)
}

func deepSchema(rng *rand.Rand, _ string) shot {
	n := of(rng, 10, 100, 2_000, 4_900)
	open, end := `{"type":"object","properties":{"a":`, "}}"
	if rng.IntN(2) == 0 {
		open, end = `{"anyOf":[`, "]}"
	}
	whole := strings.Repeat(open, n) + `{"type":"null"}` + strings.Repeat(end, n)
	if rng.IntN(3) == 0 {
		whole = `{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{"type":"null"}]},"b":{"type":"array","items":{"$ref":"#/$defs/a"}}}}`
	}
	return post(dialect.PathChat, with(dialect.PathChat, "guided_json", whole), anything)
}

func hardExpression(rng *rand.Rand, path string) shot {
	if path != dialect.PathCompletions {
		path = dialect.PathChat
	}
	n := of(rng, 10, 1000, 20_000)
	expression := of(rng, strings.Repeat("(", n), strings.Repeat("(a|", n)+"b"+strings.Repeat(")", n), "(a{1000}){1000}", "((a{100}){100}){100}", "(a*)*b", "[", `\\`, "a{99999999}",
		strings.Repeat("a?", n)+strings.Repeat("a", n), `(?<=a)b`, `\\p{Greek}+`, `[^\\x00-\\U0010ffff]`)
	if rng.IntN(2) == 0 {
		return post(path, with(path, "guided_regex", `"`+expression+`"`), anything)
	}
	grammar := of(rng, "root ::= root", "root ::= a", `root ::= \"a\" root | root root`, "root ::= "+strings.Repeat("(", n), `root ::= [`, `root ::= (\"a\"){100000}`, "", "x", `root ::= \"a\"{0,99999999}`)
	return post(path, with(path, "guided_grammar", `"`+grammar+`"`), anything)
}

func hugeNumber(rng *rand.Rand, path string) shot {
	name := of(rng, "max_tokens", "temperature", "top_p", "seed", "n", "top_k", "top_n", "dimensions", "max_output_tokens", "priority", "frequency_penalty", "logprobs", "top_logprobs")
	value := of(rng, "1e400", "-1e400", "9223372036854775808", "-9223372036854775809", "1"+strings.Repeat("0", 5000), "0."+strings.Repeat("3", 5000), "-0", "1e-400", "1E+2", "1.0",
		"18446744073709551616", "2147483648", "-1")
	b := least(path)
	if !bytes.Contains(b, []byte(`"`+name+`"`)) {
		return post(path, with(path, name, value), anything)
	}
	return post(path, bytes.Replace(b, []byte(`:4,`), []byte(":"+value+","), 1), anything)
}

// surrogate has text that is no Unicode; in a field that is ignored, nothing reads it.
func surrogate(rng *rand.Rand, path string) shot {
	lone := of(rng, `"\ud800"`, `"\udfff\ud800"`, `"a\ud83d"`, `"\u0000"`, `"\ufffe\uffff"`, `"`+strings.Repeat(`\ud800`, 200)+`"`)
	switch rng.IntN(4) {
	case 0:
		return post(path, bytes.Replace(least(path), []byte(`"default/`), []byte(`"\ud800`), 1), refusal)
	case 1:
		return post(path, with(path, `x`, lone), anything)
	case 2:
		b := least(path)
		return post(path, fmt.Appendf(nil, `%s,%s:1}`, b[:len(b)-1], lone), anything)
	}
	return post(path, saying(path, lone), anything)
}

func duplicate(rng *rand.Rand, path string) shot {
	return post(path, with(path, "model", of(rng, `"default/chat"`, `"other"`, "null", "{}")), refusal)
}

// duplicatePair is a name that is there twice further down.
func duplicatePair(rng *rand.Rand, _ string) shot {
	switch rng.IntN(3) {
	case 0:
		return post(dialect.PathChat, with(dialect.PathChat, "logit_bias", `{"5":1,"\u0035":2}`), refusal)
	case 1:
		return post(dialect.PathMessages, with(dialect.PathMessages, "metadata", `{"user_id":"a","user_id":"b"}`), anything)
	}
	return post(dialect.PathResponses, with(dialect.PathResponses, "metadata", `{"a":"1","\u0061":"2"}`), refusal)
}

// oddQuery requests a stored response with an invalid query, or one that does not exist.
func oddQuery(rng *rand.Rand, _ string) shot {
	s := post(dialect.PathResponses+"/resp_"+strings.Repeat("0", 32)+"c3R1ZGlv"+of(rng, "", "/input_items")+of(rng, "?limit=1;x", "?limit=%zz", "?limit=1&limit=2"), nil, refusal)
	s.method = http.MethodGet
	return s
}

func contentType(rng *rand.Rand, path string) shot {
	s := post(path, least(path), anything)
	s.headers = []string{"Content-Type: " + of(rng, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/xml", "application/json; charset=utf-16", strings.Repeat("x", 3000))}
	if rng.IntN(3) == 0 {
		s.body, s.want = []byte("--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ndefault/chat\r\n--x--\r\n"), refusal
	}
	return s
}

func cutOff(rng *rand.Rand, path string) shot {
	b := least(path)
	s := post(path, b[:rng.IntN(len(b))], closing)
	s.length = len(b)
	return s
}

func cutJSON(rng *rand.Rand, path string) shot {
	b := least(path)
	return post(path, b[:rng.IntN(len(b))], refusal)
}

func slowChunks(rng *rand.Rand, path string) shot {
	s := post(path, least(path), answer)
	s.length, s.pieces, s.pause = -1, 2+rng.IntN(8), time.Duration(rng.IntN(200))*time.Millisecond
	return s
}

// stalled is a body that does not end.
func stalled() shot {
	s := post(dialect.PathChat, least(dialect.PathChat)[:20], closing)
	s.kind, s.length, s.stall = "body never ends", -1, true
	return s
}

func flipped(rng *rand.Rand, path string) shot {
	b := bytes.Clone(least(path))
	for range 1 + rng.IntN(4) {
		b[rng.IntN(len(b))] ^= byte(1 << rng.IntN(8))
	}
	return post(path, b, anything)
}

func noJSON(rng *rand.Rand, path string) shot {
	b := string(least(path))
	return post(path, []byte(of(rng, "", " ", "null", "[]", `"x"`, "0", "NaN", "\xef\xbb\xbf"+b, b+b, b+"]", "{}", `{"model":}`, "\xff\xfe{\x00}\x00", strings.Replace(b, "h", "\x00", 1),
		strings.Replace(b, "h", "\xc3\x28", 1), strings.Replace(b, `"model"`, "model", 1), strings.ReplaceAll(b, `"`, `'`), "{", "//x\n"+b)), refusal)
}

func tooLarge(rng *rand.Rand, path string) shot {
	if rng.IntN(2) == 0 { // told so, and not sent
		s := post(path, least(path), closing)
		s.length = of(rng, agentapi.MaxBodyBytes+1, 1<<40)
		return s
	}
	s := post(path, saying(path, `"`+strings.Repeat("x", agentapi.MaxBodyBytes+10)+`"`), closing)
	if rng.IntN(2) == 0 {
		s.length = -1
	}
	return s
}

func packed(rng *rand.Rand, path string) shot {
	s := post(path, least(path), refusal)
	s.headers = []string{"Content-Encoding: " + of(rng, "gzip", "br", "zstd", "deflate, gzip", "x")}
	return s
}

func leaves(rng *rand.Rand, path string) shot {
	if path != dialect.PathChat && path != dialect.PathMessages && path != dialect.PathResponses {
		path = dialect.PathCompletions
	}
	b := bytes.Replace(least(path), []byte(`tokens":4`), []byte(`tokens":200`), 1)
	if rng.IntN(2) == 0 {
		b = fmt.Appendf(nil, `%s,"stream":true}`, b[:len(b)-1])
	}
	return post(path, b, nothing)
}

// moment is a time that no answer is made in.
const moment = "X-Metalfleet-Timeout: 0.000000001"

func oddHeader(rng *rand.Rand, path string) shot {
	s := post(path, least(path), anything)
	s.headers = []string{of(rng, "X-Metalfleet-Timeout: NaN", "X-Metalfleet-Timeout: 1e309", "X-Metalfleet-Timeout: -1", moment, "X-Request-Id: "+strings.Repeat("x", 2000),
		"X-Request-Id: \xff\xfe", "X-Metalfleet-Priority: zzz", "X-Metalfleet-Replica: x", "X-Metalfleet-Epoch: 9999999999999999999", "X-Metalfleet-Owner: someone", "X-Metalfleet-Model: \xc3\x28",
		"Authorization: Bearer \xff", "Expect: 100-continue", "Expect: x", "anthropic-version: 1999-01-01", "Accept: application/xml", "Accept-Encoding: *;q=0",
		"Connection: X-Request-Id", "Upgrade: h2c", "Range: bytes=0-1", "X-Forwarded-For: "+strings.Repeat("1.1.1.1, ", 500))}
	switch s.headers[0] {
	case "Expect: x":
		s.want = closing
	case moment:
		s.want = late
	}
	return s
}

func oddPath(rng *rand.Rand, path string) shot {
	s := post(of(rng, "/v1/../v1/chat/completions", "//v1/chat/completions", path+"/", path+"//x", "/v1/responses/%2e%2e/models", "/v1/responses/%00", "/v1/responses/"+strings.Repeat("x", 5000),
		"/v1/models/"+strings.Repeat("%2F", 300), "/v1/models/%ff", path+"?"+strings.Repeat("a=b&", 1000), path+"?stream=true;x", "/", "/metrics", "/debug/pprof/", "/v1", "/v1/responses/x/cancel",
		"/v1/responses/resp_"+strings.Repeat("0", 32)+"c3R1ZGlv", "/v1/responses/resp_"+strings.Repeat("0", 32)+"c3R1ZGlv/input_items?limit=-1"), least(path), anything)
	s.method = of(rng, http.MethodPost, http.MethodGet, http.MethodDelete, http.MethodPut, http.MethodPatch, http.MethodOptions, "PROPFIND", "x")
	return s
}

func noHTTP(rng *rand.Rand, path string) shot {
	s := post(path, least(path), closing)
	switch rng.IntN(4) {
	case 0:
		s.headers = []string{"Transfer-Encoding: chunked"} // in addition to Content-Length, and the body is no chunk
	case 1:
		s.headers = []string{"Content-Length: 7"}
	case 2:
		s.headers = []string{"X-A: " + strings.Repeat("x", 1<<20)}
	default:
		s.path = path + " \x01"
	}
	return s
}

func longText(rng *rand.Rand, path string) shot {
	return post(path, saying(path, `"`+strings.Repeat(of(rng, "hello ", "x", "é", `\n`, "<|im_start|>"), of(rng, 300, 20_000, 300_000))+`"`), anything)
}

// many is more of something than anybody needs.
func many(rng *rand.Rand, path string) shot {
	n := of(rng, 17, 129, 2049, 20_000)
	list := "[" + strings.Repeat(`"a",`, n-1) + `"a"]`
	switch rng.IntN(4) {
	case 0:
		return post(dialect.PathRerank, bytes.Replace(least(dialect.PathRerank), []byte(`["ho"]`), []byte(list), 1), anything)
	case 1:
		return post(dialect.PathEmbeddings, saying(dialect.PathEmbeddings, list), anything)
	case 2:
		return post(dialect.PathChat, with(dialect.PathChat, of(rng, "guided_choice", "stop"), list), anything)
	}
	b := least(path)
	for i := range n {
		b = fmt.Appendf(b[:len(b)-1], `,"field%d":null}`, i)
	}
	return post(path, b, anything)
}

func oddToken(rng *rand.Rand, _ string) shot {
	id := of(rng, "0", "2147483647", "99999", "2147483648", "-1")
	switch rng.IntN(3) {
	case 0:
		return post(dialect.PathCompletions, saying(dialect.PathCompletions, "["+id+"]"), anything)
	case 1:
		return post(dialect.PathEmbeddings, saying(dialect.PathEmbeddings, "[["+id+","+id+"]]"), anything)
	}
	return post(dialect.PathChat, with(dialect.PathChat, "logit_bias", `{"`+id+`":100}`), anything)
}

// stream is one that has to be whole.
func stream(rng *rand.Rand, path string) shot {
	if path != dialect.PathChat && path != dialect.PathMessages && path != dialect.PathResponses {
		path = dialect.PathCompletions
	}
	more := ""
	if path == dialect.PathChat || path == dialect.PathCompletions {
		more = of(rng, "", `,"n":3`, `,"stream_options":{"include_usage":true}`, `,"stop":"a"`, `,"guided_regex":"[a-c]{2,3}"`, `,"logprobs":`+map[string]string{dialect.PathChat: "true", dialect.PathCompletions: "2"}[path])
	}
	b := least(path)
	return post(path, fmt.Appendf(nil, `%s,"stream":true%s}`, b[:len(b)-1], more), answer)
}
