module ringmq.test/transports

go 1.19

require github.com/golang/snappy v0.0.4
