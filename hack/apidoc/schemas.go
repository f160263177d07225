package main

// The schemas of documented fields, as the references of the APIs define them and within
// what is supported here. They apply to strict decoding; the keyword x-open has the schema
// for the default, which is any value for an ignored member.
const (
	anyText   = `{"type":"string"}`
	someText  = `{"type":"string","minLength":1}`
	yesOrNo   = `{"type":"boolean"}`
	anyObject = `{"type":"object"}`
	token     = `{"type":"integer","minimum":0,"maximum":2147483647}`
	limit     = `{"type":"integer","minimum":1,"maximum":2147483647}`
	penalty   = `{"type":"number","minimum":-2,"maximum":2}`
	share     = `{"type":"number","minimum":0,"maximum":1}`
	// repetition is one parameter with two names; different values for both are refused.
	repetition = `{"type":"number","minimum":0.01,"maximum":100}`
	jsonForm   = `{"anyOf":[{"type":"object"},{"type":"boolean"},{"type":"string"}]}`
	choices    = `{"type":"array","items":{"type":"string"}}`
	cutOrNot   = `{"anyOf":[{"type":"boolean"},{"enum":["END","NONE"]}]}`
	cutTo      = `{"anyOf":[{"const":-1},{"type":"integer","minimum":1,"maximum":2147483647}]}`
	// form is one of the fields that constrain a response.
	form = `{"x-open":{"anyOf":[` + formOf + `"required":["json"],"properties":{"json":` + jsonForm + `,"regex":{"type":"null"},"grammar":{"type":"null"},"choice":{"type":"null"},"json_object":{"type":"null"}}},` +
		formOf + `"required":["regex"],"properties":{"json":{"type":"null"},"regex":{"type":"string"},"grammar":{"type":"null"},"choice":{"type":"null"},"json_object":{"type":"null"}}},` +
		formOf + `"required":["grammar"],"properties":{"json":{"type":"null"},"regex":{"type":"null"},"grammar":{"type":"string"},"choice":{"type":"null"},"json_object":{"type":"null"}}},` +
		formOf + `"required":["choice"],"properties":{"json":{"type":"null"},"regex":{"type":"null"},"grammar":{"type":"null"},"choice":` + choices + `,"json_object":{"type":"null"}}},` +
		formOf + `"required":["json_object"],"properties":{"json":{"type":"null"},"regex":{"type":"null"},"grammar":{"type":"null"},"choice":{"type":"null"},"json_object":{"const":true}}}]},` +
		`"type":"object","minProperties":1,"maxProperties":1,"additionalProperties":false,"properties":{"json":` + jsonForm + `,"regex":{"type":"string"},` +
		`"grammar":{"type":"string"},"choice":` + choices + `,"json_object":{"const":true}}}`
	formOf    = `{"type":"object",`
	textPart  = `{"type":"object","required":["type","text"],"additionalProperties":false,"properties":{"type":{"const":"text"},"text":{"type":"string"}}}`
	imageData = `{"type":"string","pattern":"^data:image/png;base64,([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}(==)?|[A-Za-z0-9+/]{3}=?|[A-Za-z0-9+/]{4})$"}`
	imagePart = `{"type":"object","required":["type","image_url"],"additionalProperties":false,"properties":{"type":{"const":"image_url"},"image_url":{"type":"object","required":["url"],"additionalProperties":false,"properties":{"url":` + imageData + `,"detail":{"x-open":{},"enum":["auto",null]}}}}}`
	said      = `{"anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":` + textPart + `}]}`
	maybeText = `{"type":["string","null"]}`
	empty     = `{"anyOf":[{"type":"array","maxItems":0},{"type":"null"}]}`
	// unsaid and unlisted are members without effect; strict decoding accepts null, or also
	// an empty list.
	unsaid   = `{"x-open":{},"type":"null"}`
	unlisted = `{"x-open":{},"anyOf":[{"type":"array","maxItems":0},{"type":"null"}]}`
	// arguments of a call hold a JSON object, possibly truncated by a limit; the schema of
	// a string's content is an annotation, which validators do not check.
	arguments = `{"type":"string","contentSchema":{"type":["object","null"]}}`
	// callOf is a call in an earlier turn.
	callOf = `{"type":"object","required":["id","function"],"additionalProperties":false,"properties":{"id":` + someText + `,"type":{"enum":["function","",null]},` +
		`"index":{"type":["integer","null"],"minimum":0,"maximum":2147483647},"function":{"type":"object","required":["name"],"additionalProperties":false,"properties":{"name":` + someText + `,"arguments":` + arguments + `}}}}`
	// answerOf are the other members that an assistant's message may have.
	answerOf = `"role":{"const":"assistant"},"name":` + maybeText + `,"reasoning_content":` + maybeText + `,"reasoning":{"x-open":{},"type":["string","null"]},"refusal":{"type":"null"},"annotations":` + unlisted +
		`,"audio":{"type":"null"},"provider_specific_fields":{"x-open":{},"enum":[null,{},{"refusal":null}]},"function_call":{"type":"null"}`
	// chatMessages: a tool's message answers a call of an earlier message, which a
	// schema cannot state.
	chatMessages = `{"type":"array","minItems":1,"items":{"anyOf":[` +
		`{"type":"object","required":["role","content"],"additionalProperties":false,"properties":{"role":{"enum":["system","developer"]},"name":` + maybeText + `,"content":` + said + `}},` +
		`{"type":"object","required":["role","content"],"additionalProperties":false,"properties":{"role":{"const":"user"},"name":` + maybeText + `,"content":{"anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"anyOf":[` + textPart + `,` + imagePart + `]}}]}}},` +
		`{"type":"object","required":["role","content"],"additionalProperties":false,"properties":{` + answerOf + `,"content":` + said + `,"tool_calls":` + empty + `}},` +
		`{"type":"object","required":["role","tool_calls"],"additionalProperties":false,"properties":{` + answerOf + `,"content":{"anyOf":[{"type":"array","maxItems":0},{"type":"null"},` + said + `]},` +
		`"tool_calls":{"type":"array","minItems":1,"items":` + callOf + `}}},` +
		`{"type":"object","required":["role","content","tool_call_id"],"additionalProperties":false,"properties":{"role":{"const":"tool"},"name":` + maybeText + `,"content":` + said + `,"tool_call_id":` + someText + `}}]}}`
	answerFormat = `{"anyOf":[{"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"const":"text"}}},` +
		`{"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"const":"json_object"},"schema":{"anyOf":[{"type":"null"},` + jsonForm + `]}}},` +
		`{"type":"object","required":["type","json_schema"],"additionalProperties":false,"properties":{"type":{"const":"json_schema"},"json_schema":{"type":"object","required":["schema"],` +
		`"additionalProperties":false,"properties":{"name":{"type":["string","null"]},"description":{"type":["string","null"]},"strict":{"type":["boolean","null"]},"schema":` + jsonForm + `}}}}]}`
	stops         = `{"anyOf":[{"type":"string","minLength":1},{"type":"array","maxItems":4,"items":{"type":"string","minLength":1}}]}`
	streamOptions = `{"type":"object","additionalProperties":false,"properties":{"include_usage":{"type":["boolean","null"]},"continuous_usage_stats":{"type":["boolean","null"]},"include_obfuscation":{"x-open":{},"enum":[false,null]}}}`
	saltText      = `{"type":"string","minLength":1,"maxLength":1024}`
	// tokenID is a whole number from 0 to 2147483647, in digits.
	tokenID   = `^(0|[1-9][0-9]{0,8}|1[0-9]{9}|20[0-9]{8}|21[0-3][0-9]{7}|214[0-6][0-9]{6}|2147[0-3][0-9]{5}|21474[0-7][0-9]{4}|214748[0-2][0-9]{3}|2147483[0-5][0-9]{2}|21474836[0-3][0-9]|214748364[0-7])$`
	bias      = `{"type":"object","maxProperties":300,"propertyNames":{"pattern":"` + tokenID + `"},"additionalProperties":{"type":"number","minimum":-100,"maximum":100}}`
	toolName  = `{"type":"string","pattern":"^[A-Za-z0-9_.-]{1,128}$"}`
	chatTools = `{"type":"array","items":{"type":"object","required":["type","function"],"additionalProperties":false,"properties":{"type":{"const":"function"},"function":{"type":"object",` +
		`"required":["name"],"additionalProperties":false,"properties":{"name":` + toolName + `,"description":{"type":["string","null"]},"strict":{"type":["boolean","null"]},"parameters":{"type":["object","null"]}}}}}}`
	// Anthropic's tools.
	messageTools = `{"type":"array","items":{"x-open":{"anyOf":[` + messageTool + `,{"type":"object","required":["type"],"properties":{"type":{"type":"string","not":{"const":"custom"}}}}]},"anyOf":[` + messageTool + `]}}`
	messageTool  = `{"type":"object","required":["name","input_schema"],"additionalProperties":false,"properties":{"type":{"enum":["custom",null]},"name":` + toolName +
		`,"description":{"type":["string","null"]},"strict":{"type":["boolean","null"]},"input_schema":{"type":"object"},"cache_control":` + cacheMark + `}}`
	messageChoice = `{"anyOf":[{"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"enum":["auto","any","none"]},"disable_parallel_tool_use":{"type":["boolean","null"]}}},` +
		`{"type":"object","required":["type","name"],"additionalProperties":false,"properties":{"type":{"const":"tool"},"name":` + toolName + `,"disable_parallel_tool_use":{"type":["boolean","null"]}}}]}`
	thinking = `{"x-open":{"type":"object","required":["type"],"properties":{"type":{"enum":["adaptive","disabled","enabled"]}}},"anyOf":[{"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"enum":["adaptive","disabled"]},"budget_tokens":{"type":"null"}}},` +
		`{"type":"object","required":["type","budget_tokens"],"additionalProperties":false,"properties":{"type":{"const":"enabled"},"budget_tokens":{"type":"integer","minimum":1024,"maximum":2147483647}}}]}`
	chatChoice = `{"anyOf":[{"enum":["auto","none","required"]},{"type":"object","required":["type","function"],"additionalProperties":false,"properties":{"type":{"const":"function"},` +
		`"function":{"type":"object","required":["name"],"additionalProperties":false,"properties":{"name":` + toolName + `}}}}]}`
	whole64 = `{"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807}`
)

// textSchemas are those of both of OpenAI's text routes.
var textSchemas = map[string]string{
	"model": someText, "frequency_penalty": penalty, "logit_bias": bias, "max_tokens": limit, "n": `{"type":"integer","minimum":1,"maximum":128}`,
	"presence_penalty": penalty, "seed": whole64, "stop": stops, "stream": yesOrNo, "stream_options": streamOptions,
	"temperature": `{"type":"number","minimum":0,"maximum":2}`, "top_p": share, "user": anyText, "top_k": `{"type":"integer","minimum":-1,"maximum":2147483647}`, "min_p": share,
	"priority": `{"type":"integer","minimum":-1000,"maximum":1000}`, "structured_outputs": form, "guided_json": jsonForm, "guided_regex": anyText,
	"guided_choice": choices, "guided_grammar": anyText, "repetition_penalty": repetition, "repeat_penalty": repetition, "min_tokens": token, "ignore_eos": yesOrNo,
	"stop_token_ids": `{"type":"array","maxItems":128,"items":` + token + `}`, "prompt_cache_key": anyText, "cache_salt": saltText, "json_schema": jsonForm, "grammar": anyText,
}

var chatSchemas = more(textSchemas, map[string]string{
	"messages": chatMessages, "logprobs": yesOrNo, "max_completion_tokens": limit, "response_format": answerFormat,
	"top_logprobs": `{"type":"integer","minimum":0,"maximum":20}`, "parallel_tool_calls": yesOrNo, "tools": chatTools, "tool_choice": chatChoice,
	"reasoning_effort": `{"enum":["none","minimal","low","medium","high","xhigh","max"]}`, "enable_thinking": yesOrNo, "include_reasoning": yesOrNo,
	"thinking": `{"anyOf":[{"type":"boolean"},{"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"enum":["enabled","adaptive","auto","disabled"]}}}]}`,
	"reasoning": `{"type":"object","additionalProperties":false,"properties":{"effort":{"enum":["none","minimal","low","medium","high","xhigh","max",null]},"enabled":{"type":["boolean","null"]},` +
		`"exclude":{"type":["boolean","null"]},"max_tokens":` + unsaid + `}}`,
	"chat_template_kwargs": `{"type":"object","propertyNames":{"not":{"enum":["messages","tools"]}}}`,
})

var completionSchemas = more(textSchemas, map[string]string{
	"prompt": `{"anyOf":[` + someText + `,{"type":"array","minItems":1,"maxItems":128,"items":` + someText + `},{"type":"array","minItems":1,"items":` + token + `},` +
		`{"type":"array","minItems":1,"maxItems":128,"items":{"type":"array","minItems":1,"items":` + token + `}}]}`,
	"echo": yesOrNo, "logprobs": `{"type":"integer","minimum":0,"maximum":5}`, "max_tokens": token,
})

var embeddingSchemas = map[string]string{
	"model": someText, "dimensions": `{"type":"integer","minimum":1,"maximum":1048576}`, "encoding_format": `{"enum":["float","base64"]}`, "user": anyText,
	"input": `{"anyOf":[` + someText + `,{"type":"array","minItems":1,"maxItems":2048,"items":` + someText + `},{"type":"array","minItems":1,"items":` + token + `},` +
		`{"type":"array","minItems":1,"maxItems":2048,"items":{"type":"array","minItems":1,"items":` + token + `}}]}`,
	"truncate": cutOrNot, "truncate_prompt_tokens": cutTo, "prompt_name": anyText, "input_type": anyText, "instruction": anyText,
}

var rerankSchemas = map[string]string{
	"model": someText, "query": someText, "top_n": limit, "return_documents": yesOrNo, "truncate": cutOrNot, "truncate_prompt_tokens": cutTo, "instruction": anyText,
	"documents": `{"type":"array","minItems":1,"maxItems":2048,"items":{"anyOf":[` + someText +
		`,{"type":"object","required":["text"],"additionalProperties":false,"properties":{"text":` + someText + `}}]}}`,
}

// What Anthropic's blocks are.
const (
	// schemaFormat holds a response to a schema.
	schemaFormat = `{"type":"object","required":["type","schema"],"additionalProperties":false,"properties":{"type":{"const":"json_schema"},"name":{"type":["string","null"]},"schema":` + jsonForm + `}}`
	// visible is a character that is not white space.
	visible    = `[^\t\n\u000b\f\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]`
	cacheMark  = `{"x-open":{},"anyOf":[{"type":"null"},{"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"const":"ephemeral"},"ttl":{"enum":["5m","1h",null]}}}]}`
	textBlock  = `{"type":"object","required":["type","text"],"additionalProperties":false,"properties":{"type":{"const":"text"},"text":{"type":"string","minLength":1},"cache_control":` + cacheMark + `,"citations":` + unlisted + `}}`
	textBlocks = `{"anyOf":[{"type":"string"},{"type":"array","items":` + textBlock + `}]}`
	imageBlock = `{"type":"object","required":["type","source"],"additionalProperties":false,"properties":{"type":{"const":"image"},"cache_control":` + cacheMark + `,"source":{"type":"object","required":["type","data"],` +
		`"additionalProperties":false,"properties":{"type":{"const":"base64"},"media_type":{"enum":["image/png","image/jpeg","image/webp","image/gif"]},"data":{"type":"string","pattern":"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}(==)?|[A-Za-z0-9+/]{3}=?|[A-Za-z0-9+/]{4})$"}}}}}`
	resultOf  = `{"type":"object","required":["type","tool_use_id"],"additionalProperties":false,"properties":{"type":{"const":"tool_result"},"tool_use_id":{"type":"string","minLength":1},"is_error":{"type":["boolean","null"]},"cache_control":` + cacheMark + `,"content":{"anyOf":[{"type":"null"},` + textBlocks + `]}}}`
	useOf     = `{"type":"object","required":["type","id","name","input"],"additionalProperties":false,"properties":{"type":{"const":"tool_use"},"id":{"type":"string","minLength":1},"name":{"type":"string","minLength":1},"input":{"type":"object"},"cache_control":` + cacheMark + `,"caller":{"x-open":{},"anyOf":[{"type":"null"},{"const":{"type":"direct"}}]}}}`
	thoughtOf = `{"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"const":"thinking"},"thinking":{"type":"string"},"signature":{"type":"string"},"cache_control":` + cacheMark + `}}`
)

var messageSchemas = map[string]string{
	"model": someText, "max_tokens": limit, "system": textBlocks, "stop_sequences": `{"type":"array","maxItems":16,"items":{"type":"string","minLength":1}}`,
	"stream": yesOrNo, "temperature": share, "top_k": `{"type":"integer","minimum":0,"maximum":2147483647}`, "top_p": share, "cache_control": cacheMark,
	"metadata": `{"type":"object","additionalProperties":false,"properties":{"user_id":{"type":["string","null"]}}}`,
	"tools":    messageTools, "tool_choice": messageChoice, "thinking": thinking,
	"output_config": `{"type":"object","additionalProperties":false,"properties":{"effort":{"enum":["none","minimal","low","medium","high","xhigh","max",null]},"format":{"anyOf":[{"type":"null"},` + schemaFormat + `]}}}`,
	"output_format": schemaFormat,
	"messages": `{"type":"array","minItems":1,"items":{"anyOf":[` +
		`{"type":"object","required":["role","content"],"additionalProperties":false,"properties":{"role":{"const":"system"},"content":{"anyOf":[{"type":"string","minLength":1},{"type":"array","minItems":1,"items":` + textBlock + `}]}}},` +
		`{"type":"object","required":["role","content"],"additionalProperties":false,"properties":{"role":{"const":"user"},"content":{"anyOf":[{"type":"string","minLength":1},{"type":"array","minItems":1,"items":{"anyOf":[` + textBlock + `,` + imageBlock + `,` + resultOf + `]}}]}}},` +
		`{"type":"object","required":["role","content"],"additionalProperties":false,"properties":{"role":{"const":"assistant"},"content":{"anyOf":[{"type":"string"},{"type":"array","items":{"anyOf":[` + textBlock + `,` + thoughtOf + `,` + useOf + `]}}]}}}]}}`,
}

// Items, parts and tools of responses.
const (
	inputParts = `{"anyOf":[` + someText + `,{"type":"array","minItems":1,"items":{"type":"object","required":["type","text"],"additionalProperties":false,"properties":{"type":{"const":"input_text"},"text":{"type":"string"}}}}]}`
	userParts  = `{"anyOf":[` + someText + `,{"type":"array","minItems":1,"items":{"anyOf":[{"type":"object","required":["type","text"],"additionalProperties":false,"properties":{"type":{"const":"input_text"},"text":{"type":"string"}}},` +
		`{"type":"object","required":["type","image_url"],"additionalProperties":false,"properties":{"type":{"const":"input_image"},"image_url":` + imageData + `,"detail":{"type":"string"}}}]}}]}`
	outputParts = `{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"object","required":["type","text"],"additionalProperties":false,"properties":{"type":{"const":"output_text"},"text":{"type":"string"},` +
		`"annotations":` + unlisted + `,"logprobs":` + unlisted + `}}}]}`
	itemOf     = `"id":` + maybeText + `,"status":` + maybeText
	itemFields = `"type":{"enum":["message",null]},"phase":` + unsaid + `,` + itemOf
	callFields = itemOf + `,"caller":` + unsaid + `,"call_id":` + someText
	madeFields = callFields + `,"namespace":` + maybeText + `,"async":{"enum":[false,null]},"name":` + someText
	// An output answers a call before it, which a schema cannot state.
	callItem = `{"type":"object","required":["type","call_id","name","arguments"],"additionalProperties":false,"properties":{"type":{"const":"function_call"},` + madeFields +
		`,"arguments":{"type":"string","contentSchema":{"type":["object","null"]}}}}`
	customItem = `{"type":"object","required":["type","call_id","name","input"],"additionalProperties":false,"properties":{"type":{"const":"custom_tool_call"},` + madeFields + `,"input":{"type":"string"}}}`
	outputItem = `{"type":"object","required":["type","call_id","output"],"additionalProperties":false,"properties":{"type":{"enum":["function_call_output","custom_tool_call_output"]},` + callFields + `,"namespace":` + unsaid + `,"name":` + unsaid + `,"output":{"anyOf":[{"type":"string"},` +
		`{"type":"array","items":{"type":"object","required":["type","text"],"additionalProperties":false,"properties":{"type":{"const":"input_text"},"text":{"type":"string"}}}}]}}}`
	thoughtItem = `{"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"const":"reasoning"},` + itemOf + `,"summary":` + unlisted + `,"encrypted_content":` + unsaid + `,` +
		`"content":{"anyOf":[{"type":"null"},{"type":"array","items":{"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"const":"reasoning_text"},"text":{"type":"string"}}}}]}}}`
	referenceItem = `{"type":"object","required":["id"],"additionalProperties":false,"properties":{"type":{"enum":["item_reference",null]},"id":` + someText + `,"status":` + maybeText + `}}`
	toolsItem     = `{"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"const":"additional_tools"},` + itemOf + `,"role":` + maybeText + `,"tools":{"anyOf":[{"type":"null"},` + responseTools + `]}}}`

	responseTools = `{"type":"array","items":{"x-open":{"anyOf":[` + groupedTool + `,` + toolGroup + `,` + otherTool + `"function","custom","namespace"` + otherToolEnd + `]},"anyOf":[` + groupedTool + `,` + toolGroup + `]}}`
	// groupedTool is a tool that may be in a namespace; others are left out.
	groupedTool = `{"type":"object","required":["type","name"],"additionalProperties":false,"properties":{"type":{"const":"function"},"name":` + toolName +
		`,"description":` + maybeText + `,"strict":{"type":["boolean","null"]},"parameters":{"type":["object","null"]}}},` +
		`{"type":"object","required":["type","name"],"additionalProperties":false,"properties":{"type":{"const":"custom"},"name":` + toolName + `,"description":` + maybeText + `,"format":` + customFormat + `}}`
	customFormat = `{"anyOf":[{"type":"null"},{"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"const":"text"},"syntax":` + maybeText + `,"definition":` + maybeText + `}},` +
		`{"type":"object","required":["type","syntax","definition"],"additionalProperties":false,"properties":{"type":{"const":"grammar"},"syntax":{"enum":["lark","regex"]},"definition":` + someText + `}}]}`
	toolGroup = `{"type":"object","required":["type","name","tools"],"additionalProperties":false,"properties":{"type":{"const":"namespace"},"name":` + toolName + `,"description":` + maybeText +
		`,"tools":{"type":"array","items":{"x-open":{"anyOf":[` + groupedTool + `,` + otherTool + `"function","custom"` + otherToolEnd + `]},"anyOf":[` + groupedTool + `]}}}}`
	otherTool      = `{"type":"object","required":["type"],"properties":{"type":{"type":"string","minLength":1,"not":{"enum":[`
	otherToolEnd   = `]}}}}`
	chosenTool     = `{"type":"object","required":["type","name"],"additionalProperties":false,"properties":{"type":{"enum":["function","custom"]},"name":` + toolName + `}}`
	responseChoice = `{"anyOf":[{"enum":["auto","none","required"]},` + chosenTool + `,{"type":"object","required":["type","mode","tools"],"additionalProperties":false,"properties":{"type":{"const":"allowed_tools"},` +
		`"mode":{"enum":["auto","required"]},"tools":{"type":"array","minItems":1,"items":{"x-open":{"anyOf":[` + chosenTool + `,` + otherTool + `"function","custom"` + otherToolEnd + `]},"anyOf":[` + chosenTool + `]}}}}]}`
	reasoningOf = `{"type":"object","additionalProperties":false,"properties":{"effort":{"enum":["none","minimal","low","medium","high","xhigh","max",null]},"summary":` + unsaid + `,"generate_summary":` + unsaid + `,` +
		`"context":{"enum":["auto",null]},"mode":{"enum":["standard",null]}}}`
	textFormat = `{"anyOf":[{"type":"null"},{"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"enum":["text","json_object"]},` + formatFields + `}},` +
		`{"type":"object","required":["type","schema"],"additionalProperties":false,"properties":{"type":{"const":"json_schema"},"schema":{"type":["object","boolean"]},` + formatFields + `}}]}`
	formatFields = `"name":` + maybeText + `,"description":` + maybeText + `,"strict":{"type":["boolean","null"]}`
)

var responseSchemas = map[string]string{
	"model": someText, "instructions": anyText, "prompt_cache_key": anyText, "cache_salt": saltText, "max_output_tokens": limit, "previous_response_id": anyText, "store": yesOrNo, "stream": yesOrNo,
	"temperature": `{"type":"number","minimum":0,"maximum":2}`, "top_p": share, "user": anyText, "parallel_tool_calls": yesOrNo,
	"tools": responseTools, "tool_choice": responseChoice, "reasoning": reasoningOf,
	"include":        `{"x-open":{"type":"array","items":{"type":"string"}},"type":"array","items":{"const":"message.output_text.logprobs"}}`,
	"stream_options": `{"type":"object","additionalProperties":false,"properties":{"include_obfuscation":{"x-open":{},"enum":[false,null]}}}`,
	"text":           `{"type":"object","additionalProperties":false,"properties":{"format":` + textFormat + `,"verbosity":{"x-open":{},"enum":["medium",null]}}}`,
	"metadata":       `{"type":"object","maxProperties":16,"propertyNames":{"maxLength":64},"additionalProperties":{"type":"string","maxLength":512}}`,
	"input": `{"anyOf":[` + someText + `,{"type":"array","minItems":1,"items":{"anyOf":[` +
		`{"type":"object","required":["role","content"],"additionalProperties":false,"properties":{"role":{"enum":["system","developer"]},` + itemFields + `,"content":` + inputParts + `}},` +
		`{"type":"object","required":["role","content"],"additionalProperties":false,"properties":{"role":{"const":"user"},` + itemFields + `,"content":` + userParts + `}},` +
		`{"type":"object","required":["role","content"],"additionalProperties":false,"properties":{"role":{"const":"assistant"},` + itemFields + `,"content":` + outputParts + `}},` +
		callItem + `,` + customItem + `,` + outputItem + `,` + thoughtItem + `,` + referenceItem + `,` + toolsItem + `]}}]}`,
	"background": yesOrNo, "top_logprobs": `{"type":"integer","minimum":0,"maximum":20}`, "truncation": `{"enum":["auto","disabled"]}`,
	"presence_penalty": penalty, "frequency_penalty": penalty, "top_k": textSchemas["top_k"], "min_p": share, "seed": whole64, "stop": stops, "priority": textSchemas["priority"], "logit_bias": bias,
	"repetition_penalty": repetition, "repeat_penalty": repetition, "min_tokens": token, "ignore_eos": yesOrNo, "stop_token_ids": textSchemas["stop_token_ids"],
}
