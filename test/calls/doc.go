// Package calls tests that what the server streams of tool calls can be sent back to it.
//
// It owns answers of models in every format, which the real parser and the real agent turn
// into responses, and a client of each API that assembles a stream and sends it back. The
// engine is the only fake.
//
// Start reading at TestAnyResponseCanBeSentBack.
package calls
