//go:build !race

package toolcall

import (
	"regexp"
	"strings"
)

const (
	glmWeather  = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
	kimiWeather = "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
	deepWeather = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
	oldWeather  = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
)

// glmTranscripts are in the formats of GLM-4.6, which writes line ends, and GLM-4.7.
func glmTranscripts() map[string]transcript {
	const write = "<tool_call>write<arg_key>path</arg_key><arg_value>README.md</arg_value><arg_key>content</arg_key><arg_value>hello</arg_value></tool_call>"
	return map[string]transcript{
		"a call":                   {written: glmWeather + "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>", want: []string{`C weather {"city": "Paris", "days": 3}`}},
		"without line ends":        {written: write, want: []string{wrote}},
		"text, then two":           {written: "I see.\n" + write + "\n<tool_call>now</tool_call>", want: []string{"T I see.", wrote, "C now {}"}},
		"no arguments":             {written: "<tool_call>now\n</tool_call>", want: []string{"C now {}"}},
		"a namespace":              {written: "<tool_call>functions.now</tool_call>", want: []string{"C now {}"}},
		"integers with a point":    {written: glmWeather + "<arg_key>days</arg_key>\n<arg_value>5.0</arg_value>\n</tool_call>", want: []string{`C weather {"city": "Paris", "days": 5}`}},
		"other types":              {written: glmWeather + "<arg_key>exact</arg_key>\n<arg_value>True</arg_value>\n<arg_key>list</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>", want: []string{`C weather {"city": "Paris", "exact": true, "list": [1, 2]}`}},
		"text of many lines":       {written: "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>a \"b\"\n\n\tc\\</arg_value>\n</tool_call>", want: []string{`C weather {"city": "a \"b\"\n\n\tc\\"}`}},
		"JSON instead of pairs":    {written: `<tool_call>{"name": "weather", "arguments": {"city": "a"}}</tool_call>`, want: []string{`C weather {"city": "a"}`}},
		"a closing tag is missing": {written: "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>README.md\n<arg_key>content</arg_key>\n<arg_value>hello</arg_value>\n</tool_call>", want: []string{wrote}},
		"the last is missing":      {written: "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>README.md</arg_value>\n<arg_key>content</arg_key>\n<arg_value>hello\n</tool_call>", want: []string{wrote}},
		"the end is missing":       {written: glmWeather, want: []string{`C weather {"city": "Paris"}`}, cut: []string{`B weather {"city": "Paris" | ` + strings.TrimPrefix(glmWeather, "<tool_call>")}},
		"cut in a value":           {written: "<tool_call>weather<arg_key>city</arg_key><arg_value>Par", want: []string{"T weather<arg_key>city</arg_key><arg_value>Par"}, broken: 1, held: []string{`B weather {"city": "Par | weather<arg_key>city</arg_key><arg_value>Par`}, cut: []string{`B weather {"city": "Par | weather<arg_key>city</arg_key><arg_value>Par`}},
		"cut in a name":            {written: "<tool_call>wea", want: []string{"T wea"}, broken: 1, cut: []string{"T wea"}},
		"not declared":             {written: "x <tool_call>rm\n<arg_key>path</arg_key>\n<arg_value>/</arg_value>\n</tool_call>", want: []string{"T x rm\n<arg_key>path</arg_key>\n<arg_value>/</arg_value>\n"}, broken: 1},
		"no call":                  {written: "a <arg_key>b</arg_key> c", want: []string{"T a <arg_key>b</arg_key> c"}},
	}
}

// attributeTranscripts are in the format of MiniMax M2; tag gives the tags of another.
func attributeTranscripts(tag func(string) string) map[string]transcript {
	out := map[string]transcript{
		"a call":                           {written: "Let me see.\n<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Paris</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n</minimax:tool_call>", want: []string{"T Let me see.", `C weather {"city": "Paris", "days": 3}`}},
		"two in one tag":                   {written: "<minimax:tool_call>\n<invoke name=\"now\">\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>", want: []string{"C now {}", "C now {}"}},
		"integers with a point, and lists": {written: "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"days\">5.0</parameter>\n<parameter name=\"list\">[1, 2]</parameter>\n</invoke>\n</minimax:tool_call>", want: []string{`C weather {"days": 5, "list": [1, 2]}`}},
		"text of many lines":               {written: "<minimax:tool_call><invoke name=\"weather\"><parameter name=\"city\">a \"b\"\n\n</p></parameter></invoke></minimax:tool_call>", want: []string{`C weather {"city": "a \"b\"\n\n</p>"}`}},
		"a closing tag is missing":         {written: "<minimax:tool_call>\n<invoke name=\"write\">\n<parameter name=\"path\">README.md\n<parameter name=\"content\">hello</parameter>\n</invoke>\n</minimax:tool_call>", want: []string{wrote}},
		"the last tags are missing":        {written: "<minimax:tool_call>\n<invoke name=\"write\">\n<parameter name=\"path\">README.md</parameter>\n<parameter name=\"content\">hello\n</minimax:tool_call>", want: []string{wrote}},
		"not declared":                     {written: "<minimax:tool_call>\n<invoke name=\"rm\">\n</invoke></minimax:tool_call>", want: []string{"T \n<invoke name=\"rm\">\n</invoke>"}, broken: 1},
		"cut in a value":                   {written: "<minimax:tool_call><invoke name=\"weather\"><parameter name=\"city\">Par", want: []string{`T <invoke name="weather"><parameter name="city">Par`}, broken: 1, held: []string{`B weather {"city": "Par | <invoke name="weather"><parameter name="city">Par`}, cut: []string{`B weather {"city": "Par | <invoke name="weather"><parameter name="city">Par`}},
		"no call":                          {written: "</parameter> <b></invoke>", want: []string{"T </parameter> <b></invoke>"}},
	}
	for name, c := range out {
		c.written = tag(c.written)
		for _, list := range [][]string{c.want, c.held, c.cut} {
			for i, text := range list {
				list[i] = tag(text)
			}
		}
		out[name] = c
	}
	return out
}

// inDSML writes tags as DeepSeek V3.2 does.
func inDSML(text string) string {
	text = regexp.MustCompile(`(<parameter name="(days|list)")>`).ReplaceAllString(text, `$1 string="false">`)
	text = regexp.MustCompile(`(<parameter name="\w+")>`).ReplaceAllString(text, `$1 string="true">`)
	return strings.NewReplacer("minimax:tool_call>", "｜DSML｜function_calls>", "<invoke", "<｜DSML｜invoke", "</invoke", "</｜DSML｜invoke", "<parameter", "<｜DSML｜parameter", "</parameter", "</｜DSML｜parameter").Replace(text)
}

// headedTranscripts are in the format of Kimi K2.
func kimiTranscripts() map[string]transcript {
	return map[string]transcript{
		"a call":                {written: "I see." + kimiWeather + `{"city": "Paris", "days": 3}<|tool_call_end|><|tool_calls_section_end|>`, want: []string{"T I see.", `C weather {"city": "Paris", "days": 3}`}},
		"two":                   {written: kimiWeather + `{"city": "a"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>`, want: []string{`C weather {"city": "a"}`, "C now {}"}},
		"no prefix":             {written: "<|tool_calls_section_begin|><|tool_call_begin|>now<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>", want: []string{"C now {}"}},
		"no section":            {written: "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|> ok", want: []string{"C now {}", "T ok"}},
		"null":                  {written: "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>null<|tool_call_end|>", want: []string{"C now {}"}},
		"nothing":               {written: "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|><|tool_call_end|>", want: []string{"C now {}"}},
		"a name alone":          {written: "<|tool_call_begin|>functions.now:0<|tool_call_end|>", want: []string{"C now {}"}},
		"line ends":             {written: "<|tool_calls_section_begin|>\n<|tool_call_begin|>functions.weather:0 <|tool_call_argument_begin|> {\"city\": \"a\n\"}\n<|tool_call_end|>\n<|tool_calls_section_end|>", want: []string{`C weather {"city": "a\n"}`}},
		"integers with a point": {written: kimiWeather + `{"days": 5.0}<|tool_call_end|><|tool_calls_section_end|>`, want: []string{`C weather {"days": 5}`}},
		"a tag in a string":     {written: kimiWeather + `{"city": "<|tool_call_end|>"}<|tool_call_end|><|tool_calls_section_end|>`, want: []string{`C weather {"city": "<|tool_call_end|>"}`}},
		"the ends are missing":  {written: kimiWeather + `{"city": "a"}`, want: []string{`C weather {"city": "a"}`}},
		"no end, then another":  {written: kimiWeather + `{"city": "a"}<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>`, want: []string{`C weather {"city": "a"}`, "C now {}"}},
		"not declared":          {written: "<|tool_call_begin|>functions.rm:0<|tool_call_argument_begin|>{}<|tool_call_end|>", want: []string{"T functions.rm:0{}"}, broken: 1},
		"no JSON":               {written: "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>x<|tool_call_end|>", want: []string{"T functions.now:0x"}, broken: 1},
		"an end alone":          {written: "a <|tool_call_end|>b", want: []string{"T a b"}},
		"cut":                   {written: kimiWeather + `{"city": "Par`, want: []string{`T functions.weather:0{"city": "Par`}, broken: 1, held: []string{`B weather {"city": "Par | functions.weather:0{"city": "Par`}, cut: []string{`B weather {"city": "Par | functions.weather:0{"city": "Par`}},
		"cut in a name":         {written: "<|tool_calls_section_begin|><|tool_call_begin|>functions.wea", want: []string{"T functions.wea"}, broken: 1, cut: []string{"T functions.wea"}},
	}
}

// deepTranscripts are in the formats of DeepSeek V3, with a fence, and V3.1.
func deepTranscripts() map[string]transcript {
	const call, sep, end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
	return map[string]transcript{
		"V3.1":                  {written: "I see." + deepWeather + `{"city": "Paris", "days": 3.0}` + end + "<｜tool▁calls▁end｜>", want: []string{"T I see.", `C weather {"city": "Paris", "days": 3}`}},
		"V3":                    {written: oldWeather + "{\"city\": \"Paris\"}\n```" + end + "<｜tool▁calls▁end｜>", want: []string{`C weather {"city": "Paris"}`}},
		"two of V3":             {written: oldWeather + "{\"city\": \"a\"}\n```" + end + "\n" + call + "function" + sep + "now\n```json\n{}\n```" + end + "<｜tool▁calls▁end｜>", want: []string{`C weather {"city": "a"}`, "C now {}"}},
		"two of V3.1":           {written: deepWeather + `{"city": "a"}` + end + call + "now" + sep + "{}" + end + "<｜tool▁calls▁end｜>", want: []string{`C weather {"city": "a"}`, "C now {}"}},
		"the ends are missing":  {written: deepWeather + `{"city": "a"}`, want: []string{`C weather {"city": "a"}`}},
		"line ends in a string": {written: deepWeather + "{\"city\": \"a\nb\"}" + end, want: []string{`C weather {"city": "a\nb"}`}},
		"not declared":          {written: call + "rm" + sep + "{}" + end, want: []string{"T rm{}"}, broken: 1},
		"V3, not declared":      {written: call + "function" + sep + "rm\n```json\n{}\n```" + end, want: []string{"T functionrm\n```json\n{}\n```"}, broken: 1},
		"cut":                   {written: deepWeather + `{"city": "Par`, want: []string{`T weather{"city": "Par`}, broken: 1, held: []string{`B weather {"city": "Par | weather{"city": "Par`}, cut: []string{`B weather {"city": "Par | weather{"city": "Par`}},
	}
}

func gemmaTranscripts() map[string]transcript {
	const quote = `<|"|>`
	return map[string]transcript{
		"a call":                {written: "I see.<|tool_call>call:weather{city:<|\"|>Paris<|\"|>,days:3}<tool_call|>", want: []string{"T I see.", `C weather {"city":"Paris","days":3}`}},
		"two":                   {written: `<|tool_call>call:weather{city:<|"|>a<|"|>}<tool_call|><|tool_call>call:now{}<tool_call|>`, want: []string{`C weather {"city":"a"}`, "C now {}"}},
		"two in one tag":        {written: `<|tool_call>call:now{}call:now{}<tool_call|>`, want: []string{"C now {}", "C now {}"}},
		"a name alone":          {written: `<|tool_call>call:now<tool_call|> ok`, want: []string{"C now {}", "T ok"}},
		"integers with a point": {written: `<|tool_call>call:weather{days:5.0,share:5.0}<tool_call|>`, want: []string{`C weather {"days":5,"share":5.0}`}},
		"objects and lists":     {written: `<|tool_call>call:weather{more:{a:{b:<|"|>x<|"|>},c:[1,<|"|>y<|"|>,{d:true}]},exact:false}<tool_call|>`, want: []string{`C weather {"more":{"a":{"b":"x"},"c":[1,"y",{"d":true}]},"exact":false}`}},
		"keys in quotes":        {written: `<|tool_call>call:weather{more:{<|"|>a b<|"|>:1}}<tool_call|>`, want: []string{`C weather {"more":{"a b":1}}`}},
		"text with everything":  {written: "<|tool_call>call:weather{city:" + quote + "a \"b\"\n\\ {c:d}, <tool_call|>" + quote + "}<tool_call|>", want: []string{`C weather {"city":"a \"b\"\n\\ {c:d}, <tool_call|>"}`}},
		"blanks":                {written: "<|tool_call> call:weather{ city: " + quote + "a" + quote + ", days: 3 }\n<tool_call|>", want: []string{`C weather { "city": "a", "days": 3 }`}},
		"commas too many":       {written: `<|tool_call>call:weather{list:[1,2,],}<tool_call|>`, want: []string{`C weather {"list":[1,2]}`}},
		"the end is missing":    {written: `<|tool_call>call:weather{days:3}`, want: []string{`C weather {"days":3}`}},
		"an end alone":          {written: `a <tool_call|>b<|"|>`, want: []string{"T a b"}},
		"not declared":          {written: `<|tool_call>call:rm{path:<|"|>/<|"|>}<tool_call|>`, want: []string{"T call:rm{path:/}"}, broken: 1},
		"text without quotes":   {written: `<|tool_call>call:weather{city:Paris}<tool_call|>`, want: []string{"T call:weather{city:Paris}"}, broken: 1, held: []string{`B weather {"city": | call:weather{city:`, "T Paris}"}},
		"a bare quote":          {written: `<|tool_call>call:weather{city:"}},x`, want: []string{`T call:weather{city:"}},x`}, broken: 1, held: []string{`B weather {"city": | call:weather{city:`, `T "}},x`}},
		"cut in a text":         {written: `<|tool_call>call:weather{city:<|"|>Par`, want: []string{"T call:weather{city:Par"}, broken: 1, held: []string{`B weather {"city":"Par | call:weather{city:Par`}, cut: []string{`B weather {"city":"Par | call:weather{city:Par`}},
		"cut in a name":         {written: `<|tool_call>call:wea`, want: []string{"T call:wea"}, broken: 1, cut: []string{"T call:wea"}},
	}
}

func lfmTranscripts() map[string]transcript {
	return map[string]transcript{
		"a call":                 {written: "<|tool_call_start|>[weather(city='Paris', days=3)]<|tool_call_end|>I see.", want: []string{`C weather {"city":"Paris", "days":3}`, "T I see."}},
		"two":                    {written: `<|tool_call_start|>[weather(city="a"), now()]<|tool_call_end|>`, want: []string{`C weather {"city":"a"}`, "C now {}"}},
		"without a list":         {written: `<|tool_call_start|>now()<|tool_call_end|>`, want: []string{"C now {}"}},
		"constants of Python":    {written: `<|tool_call_start|>[weather(exact=True, either=None, of=-2.0)]<|tool_call_end|>`, want: []string{`C weather {"exact":true, "either":null, "of":-2}`}},
		"constants of JSON":      {written: `<|tool_call_start|>[weather(exact=true, more={"a": [1, {'b': null}]})]<|tool_call_end|>`, want: []string{`C weather {"exact":true, "more":{"a": [1, {"b": null}]}}`}},
		"quotes and escapes":     {written: `<|tool_call_start|>[weather(city='a "b" it\'s \n \d (c=1)')]<|tool_call_end|>`, want: []string{`C weather {"city":"a \"b\" it's \n \\d (c=1)"}`}},
		"numbers of characters":  {written: `<|tool_call_start|>[weather(city='\x41\xE9\u00e9\U0001f600\1014\0\a')]<|tool_call_end|>`, want: []string{`C weather {"city":"A\u00e9\u00e9😀A4\u0000\u0007"}`}},
		"numbers of none":        {written: `<|tool_call_start|>[weather(city='\x4 \xé \U00110000 \U0000d800 \8 \x')]<|tool_call_end|>`, want: []string{`C weather {"city":"\\x4 \\xé \\U00110000 \\U0000d800 \\8 \\x"}`}},
		"a line that continues":  {written: "<|tool_call_start|>[weather(city='a\\\nb')]<|tool_call_end|>", want: []string{`C weather {"city":"ab"}`}},
		"line ends":              {written: "<|tool_call_start|>[weather(\n  city='a\nb',\n)]<|tool_call_end|>", want: []string{`C weather {` + "\n  " + `"city":"a\nb"` + "\n}"}},
		"a tag in a string":      {written: `<|tool_call_start|>[weather(city='<|tool_call_end|>')]<|tool_call_end|>`, want: []string{`C weather {"city":"<|tool_call_end|>"}`}},
		"the ends are missing":   {written: `<|tool_call_start|>[now()`, want: []string{"C now {}"}},
		"not declared":           {written: `<|tool_call_start|>[rm(path='/')]<|tool_call_end|>`, want: []string{"T [rm(path='/')]"}, broken: 1},
		"a value without a name": {written: `<|tool_call_start|>[weather('Paris')]<|tool_call_end|>`, want: []string{"T [weather('Paris')]"}, broken: 1, held: []string{"B weather {\"Paris\" | [weather('Paris'", "T )]"}},
		"cut in a text":          {written: `<|tool_call_start|>[weather(city='Par`, want: []string{"T [weather(city='Par"}, broken: 1, held: []string{`B weather {"city":"Par | [weather(city='Par`}, cut: []string{`B weather {"city":"Par | [weather(city='Par`}},
	}
}
