// client URL COUNT: so many requests at once, each on a connection of its own; waits for ever.
package main

import (
	"fmt"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"strings"
	"sync"
)

const body = `{"model":"tiny","stream":true,"max_tokens":8,"messages":[{"role":"user","content":"hi"}]}`

func ask(url string, number int, sent *sync.WaitGroup) {
	request, _ := http.NewRequest("POST", url, strings.NewReader(body))
	request.Header.Set("content-type", "application/json")
	request.Header.Set("x-request-id", fmt.Sprintf("go-%d", number))
	told := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { sent.Done() }}
	http.DefaultClient.Do(request.WithContext(httptrace.WithClientTrace(request.Context(), told)))
}

func main() {
	count, _ := strconv.Atoi(os.Args[2])
	var sent sync.WaitGroup
	sent.Add(count)
	for i := 0; i < count; i++ {
		go ask(os.Args[1], i, &sent)
	}
	sent.Wait()
	fmt.Println("asked")
	select {}
}
