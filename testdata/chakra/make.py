"""Writes the traces of this folder: python3 -m venv v && v/bin/pip install protobuf && v/bin/python make.py

The messages are described here by their field numbers (mlcommons/chakra, schema/protobuf/et_def.proto), and Google's protobuf package
encodes them: so what writes these files has nothing to do with what reads them.

Sixteen ranks on two servers of eight: each computes, adds up activations with the eight of its server, computes, and adds up
gradients with the one on the other server; rank 0 sends to rank 9 meanwhile. Rank 5 computes longer than the others.
"""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.encoder import _VarintBytes

F = descriptor_pb2.FieldDescriptorProto
file = descriptor_pb2.FileDescriptorProto(name="trace.proto", package="t", syntax="proto3")


def message(name, fields):
    found = file.message_type.add(name=name)
    has_value = any(field.endswith("_val") for field, *_ in fields)
    if has_value:
        found.oneof_decl.add(name="value")
    for field, number, kind, repeated, of in fields:
        one = found.field.add(name=field, number=number, type=kind)
        if field.endswith("_val"):
            one.oneof_index = 0
        one.label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
        if of:
            one.type_name = ".t." + of


message("Attribute", [
    ("name", 1, F.TYPE_STRING, False, None),
    ("double_val", 3, F.TYPE_DOUBLE, False, None),
    ("int32_val", 7, F.TYPE_INT32, False, None),
    ("int64_val", 9, F.TYPE_INT64, False, None),
    ("uint64_val", 13, F.TYPE_UINT64, False, None),
    ("sint64_val", 17, F.TYPE_SINT64, False, None),
    ("bool_val", 27, F.TYPE_BOOL, False, None),
    ("string_val", 29, F.TYPE_STRING, False, None),
])
message("Metadata", [("version", 1, F.TYPE_STRING, False, None), ("attr", 2, F.TYPE_MESSAGE, True, "Attribute")])
message("Node", [
    ("id", 1, F.TYPE_UINT64, False, None),
    ("name", 2, F.TYPE_STRING, False, None),
    ("type", 3, F.TYPE_INT32, False, None),
    ("ctrl_deps", 4, F.TYPE_UINT64, True, None),
    ("data_deps", 5, F.TYPE_UINT64, True, None),
    ("start_time_micros", 6, F.TYPE_UINT64, False, None),
    ("duration_micros", 7, F.TYPE_UINT64, False, None),
    ("attr", 10, F.TYPE_MESSAGE, True, "Attribute"),
])
pool = descriptor_pool.DescriptorPool()
pool.Add(file)
Attribute, Metadata, Node = (
    message_factory.GetMessageClass(pool.FindMessageTypeByName("t." + name)) for name in ("Attribute", "Metadata", "Node")
)

METADATA, LOAD, COMPUTE, SEND, RECEIVE, COLLECTIVE = 1, 2, 4, 5, 6, 7
ALL_REDUCE, ALL_GATHER, BARRIER = 0, 2, 9


def node(id, name, type, after=(), control=(), micros=0, **attributes):
    made = Node(id=id, name=name, type=type, data_deps=after, ctrl_deps=control, duration_micros=micros)
    for name, (kind, value) in attributes.items():
        made.attr.append(Attribute(name=name, **{kind + "_val": value}))
    return made


def rank(number):
    group, pair = number // 8, number % 8
    nodes = [
        node(1, "iteration", METADATA),
        node(2, "forward", COMPUTE, control=[1], micros=300 if number == 5 else 200, is_cpu_op=("bool", False)),
        node(3, "launch", COMPUTE, control=[1], micros=50, is_cpu_op=("bool", True)),
        node(4, "activations", COLLECTIVE, after=[2], control=[3], comm_type=("int64", ALL_REDUCE),
             comm_size=("int64", 8 << 20), pg_name=("string", f"tensor{group}"), comm_priority=("int32", 1)),
        # A product of 4,096 squared matrices, whose time nobody measured.
        node(5, "backward", COMPUTE, after=[4], num_ops=("uint64", 2 * 4096**3), tensor_size=("uint64", 3 * 2 * 4096**2)),
        node(6, "gradients", COLLECTIVE, after=[5], comm_type=("int32", ALL_REDUCE), comm_size=("uint64", 32 << 20),
             pg_name=("string", f"data{pair}")),
        node(7, "parameters", COLLECTIVE, after=[6], comm_type=("int64", ALL_GATHER), comm_size=("sint64", 4 << 20),
             pg_name=("string", f"data{pair}")),
        node(8, "load", LOAD, after=[2], tensor_size=("uint64", 1 << 24)),
        node(9, "end", COLLECTIVE, after=[7, 8], comm_type=("int64", BARRIER)),
    ]
    if number == 0:
        nodes.append(node(10, "hint", SEND, after=[2], comm_size=("int64", 1 << 20), comm_dst=("int32", 9), comm_tag=("string", "0")))
    if number == 9:
        nodes.append(node(10, "hint", RECEIVE, after=[2], comm_size=("int64", 1 << 20), comm_src=("int32", 0)))
    return nodes


for number in range(16):
    with open(f"two-servers.{number}.et", "wb") as out:
        for made in [Metadata(version="0.0.4"), *rank(number)]:
            data = made.SerializeToString(deterministic=True)
            out.write(_VarintBytes(len(data)) + data)
