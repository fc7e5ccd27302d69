// `go_client PORT N`: N requests over one keep-alive connection, a stream of which one event is read, one to /hang.
// Prints "ready" when the stream has begun, and waits.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
)

func send(method, path, body string) *http.Response {
	request, err := http.NewRequest(method, "http://127.0.0.1:"+os.Args[1]+path, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	request.Header.Set("X-Request-Id", "go-"+path)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(err)
	}
	return answer
}

func main() {
	count, _ := strconv.Atoi(os.Args[2])
	for ; count > 0; count-- {
		answer := send("GET", "/chunked", "")
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
	}
	stream := send("POST", "/stream", "{}")
	bufio.NewReader(stream.Body).ReadString('\n')
	fmt.Println("ready")
	send("POST", "/hang", "{}")
}
